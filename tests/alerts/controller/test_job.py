"""The controller on a real store, with a trainer that records, asks its switch, and says what it applied."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from diagnoses import diagnosis
from processes import eventually
from recorded_home import take_in

from logprobe.alerts.controller import decide, effect, gather
from logprobe.alerts.controller.job import Controller, controller_part, perform, records
from logprobe.alerts.controller.policy import POLICY, Mode, Policy
from logprobe.alerts.notification import Notification
from logprobe.alerts.rules.alert import CRITICAL, Alert
from logprobe.alerts.rules.ledger import save
from logprobe.collectors import Recorder
from logprobe.collectors.correction import CorrectionConfig, correct
from logprobe.collectors.correction.presets import preset
from logprobe.collectors.directives import DirectiveFile
from logprobe.collectors.errors import ConfigurationError, LogprobeError
from logprobe.collectors.switch import CorrectionSwitch
from logprobe.monitor import queries
from logprobe.monitor.home import Home
from logprobe.monitor.store.store import Store

RUN = "run"
STALE = {"cause": "staleness", "layer": "objective", "confidence": 0.9}
ARMED = Policy(mode=Mode.ARMED, notice_steps=3)


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Acknowledgements are missed, and effects are judged, after fewer steps than elsewhere: each takes time here."""
    monkeypatch.setattr(decide, "ACK_STEPS", 2)
    monkeypatch.setattr(effect, "STEPS", 12)


class Trainer:
    """Records steps of 8 sequences whose log-ratios spread by `spread`, with whatever correction the switch names."""

    def __init__(self, home: Path, store: Store) -> None:
        self.home, self.store = home, store
        self.recorder = Recorder(home, RUN)
        self.rng = np.random.default_rng(0)
        self.step = 0

    def train(
        self,
        steps: int,
        *,
        spread: float = 0.1,
        switch: CorrectionSwitch | None = None,
        says: bool = True,
        advantages: bool = True,
        applied_spread: float | None = None,
    ) -> None:
        """`applied_spread`: of the log-ratios that it corrects for, where these are not those that it records."""
        for _ in range(steps):
            rollout = [-self.rng.exponential(1.0, 50).astype(np.float32) - 0.01 for _ in range(8)]
            trainer = [np.minimum(r + self.rng.normal(0, spread, 50), -1e-3).astype(np.float32) for r in rollout]
            config = None if switch is None else switch.current(self.step)
            other = [r + self.rng.normal(0, applied_spread or 0, 50).astype(np.float32) for r in rollout]
            correction = (
                None if config is None else correct(config, rollout, trainer if applied_spread is None else other)
            )
            self.recorder.training(
                step=self.step,
                sample_ids=[f"s{self.step}-{index}" for index in range(8)],
                token_ids=[np.arange(50)] * 8,
                trainer_logprobs=trainer,
                rollout_logprobs=rollout,
                advantages=self.rng.normal(0, 1, 8).astype(np.float32) if advantages else None,
                rewards=np.full(8, 0.5),
            )
            self.recorder.step(self.step, grad_norm=1.0, correction=correction if says else None)
            self.step += 1
        assert self.recorder.flush(120)
        take_in(self.store)


@pytest.fixture
def trainer(home: Path, store: Store) -> Iterator[Trainer]:
    trainer = Trainer(home, store)
    yield trainer
    trainer.recorder.close()


def diagnosed(store: Store, verdict: str, *findings: dict[str, object]) -> None:
    """Diagnosis that the job would have written last."""
    advice = "not_needed" if verdict == "healthy" else "enable"
    correction = {"advice": advice, "why": "as the diagnosis has it"}
    document = json.dumps(diagnosis(verdict, findings=findings, correction=correction))
    (row,) = store.query(
        "SELECT max(step) AS step, max(revision) AS revision FROM step_summaries ANTI JOIN abandoned_steps USING (run, step)"
    ).to_pylist()
    written = {
        "run": RUN, "verdict": verdict, "layer": "objective", "since_step": 0, "advice": advice, "document": document,
        "causes": [finding["cause"] for finding in findings], "diagnosed_at": datetime.now(UTC),
        "cause": findings[0]["cause"] if findings else None,
    }  # fmt: skip
    with store.transaction() as cursor:
        store.execute(cursor, "replace", pa.Table.from_pylist([written | row]), table="diagnoses")


def switched_on(store: Store, trainer: Trainer, steps: int = 15, **how: float) -> Controller:
    """A controller that has just switched a correction on."""
    controller = Controller(store, lambda _: ARMED)
    trainer.train(steps, **how)
    diagnosed(store, "critical", STALE)
    controller.run_once()
    return controller


def rows_of(store: Store) -> list[dict[str, Any]]:
    return store.read("controller_actions", run=RUN).to_pylist()


def audit(store: Store) -> list[str]:
    return [f"{row['name']}/{row['reason']}" for row in rows_of(store)]


def told(store: Store) -> list[str]:
    return store.query("SELECT state FROM notifications ORDER BY number")["state"].to_pylist()


def test_its_messages_say_how_the_run_stands(store: Store, trainer: Trainer) -> None:
    """As those of alerts do: the newest message of a channel may be the controller's."""
    trainer.train(1)
    controller = Controller(store, lambda _: ARMED)
    controller.command({"run": RUN, "command": "suggest", "by": "ann"})
    diagnosed(store, "healthy")
    with store.transaction() as cursor:
        save(store, cursor, [(RUN, Alert("coverage-low", level=CRITICAL))])
    controller.command({"run": RUN, "command": "armed", "by": "ann"})
    documents = store.query("SELECT document FROM notifications ORDER BY number")["document"].to_pylist()
    assert [Notification.from_json(each).run_severity for each in documents] == ["unknown", "critical"]


def test_from_growth_to_the_effect(home: Path, store: Store, trainer: Trainer) -> None:
    """On the way it is started again, loses its file, and hears another rank."""
    controller = Controller(store, lambda _: ARMED)
    trainer.train(15, spread=0.6)
    diagnosed(store, "healthy")
    assert controller.run_once() == {"runs": 1, "actions": 0, "waiting": 0}
    assert controller.run_once() == {"runs": 0, "waiting": 0}  # nothing is new
    diagnosed(store, "critical", STALE)
    later = Controller(store, lambda _: ARMED, clock=lambda: datetime.now(UTC) + timedelta(days=2))
    assert later.run_once() == {"runs": 0, "waiting": 0}, "no trainer is left to be told"
    assert controller.run_once() == {"runs": 1, "actions": 1, "waiting": 0}
    written = (file := DirectiveFile(home, RUN)).path.read_bytes()
    for lost in (file.path.unlink, lambda: file.path.write_bytes(b"{}")):
        lost()  # as if the process had died between the transaction and the file
        (controller := Controller(store, lambda _: ARMED)).run_once()
        assert file.path.read_bytes() == written
    with CorrectionSwitch(home, RUN, poll_seconds=0.01) as switch, Recorder(home, RUN, rank=1) as other:
        assert [switch.current(step) is None for step in (16, 17, 99)] == [True, False, False]  # 14 was the newest step
        trainer.train(5, spread=0.6, switch=switch)
        ones = np.zeros((1, 4), np.float32) - 1
        other.step(18, correction=correct(CorrectionConfig(is_level="token"), ones, ones))
        assert other.flush(120)
        controller.run_once()
        trainer.train(14, spread=0.6, switch=switch)
        controller.run_once()
    assert audit(store) == [
        "switched_on/critical_growth", "acknowledged/applied", "ranks_disagree/other_config", "effect/no_effect_shown",
    ]  # fmt: skip
    assert told(store) == ["switched_on", "acknowledged", "ranks_disagree", "effect"]
    previewed, effect = (json.loads(rows_of(store)[at]["details"]) for at in (0, -1))
    figures = {each["name"]: each for each in effect["figures"]}
    assert [figures["reward"][side]["steps"] for side in ("before", "after")] == [12, 12]
    assert figures["reward"]["after"]["value"] == 0.5
    assert figures["grad_norm"]["after"]["value"] == pytest.approx(1.0)
    assert figures["masked"]["before"] is None  # no corrected step is on this side
    assert (effect["steps"], previewed["preview"]["tokens"]) == (12, 5 * 8 * 50)
    metrics = "SELECT step, value FROM step_metrics WHERE metric = '%s' AND value IS NOT NULL ORDER BY step"
    assert store.query(metrics % "is_weight_mean")["step"].to_pylist() == list(range(17, 34))
    masked = np.mean(store.query(metrics % "clipped_frac")["value"].to_numpy())
    assert 0.05 < masked < 0.2
    assert previewed["preview"]["masked_tokens"] == pytest.approx(masked, abs=0.03), "the preview is what is measured"
    assert effect["masked"] == pytest.approx(masked, abs=0.03)


@pytest.mark.parametrize(
    ("records", "trainer_has", "action", "then"),
    [
        (0.1, 2.0, "rolled_back/masked_share", None),  # its numbers are not those of the records
        (2.0, None, "switched_on/outgrown", preset("tis")),
    ],
)
def test_what_masks_too_much_is_taken_off_or_gives_way_to_truncation(
    home: Path, store: Store, trainer: Trainer, records: float, trainer_has: float | None, action: str,
    then: CorrectionConfig | None,
) -> None:  # fmt: skip
    controller = switched_on(store, trainer)
    with CorrectionSwitch(home, RUN, poll_seconds=0.01) as switch:
        trainer.train(12, switch=switch, spread=records, applied_spread=trainer_has)
        controller.run_once()
        assert audit(store)[-1] == action
        changed = trainer.step - 1 + ARMED.notice_steps
        eventually(lambda: switch.current(changed) == then)
        assert all(switch.current(step) is not None for step in range(17, changed)), "until then it is on"
        if then is not None:
            trainer.train(8, switch=switch, spread=records)
            controller.run_once()
            assert audit(store)[-1] == "acknowledged/applied"


def test_what_the_trainer_cannot_apply_counts_as_not_applied(home: Path, store: Store, trainer: Trainer) -> None:
    controller = switched_on(store, trainer)
    first = DirectiveFile(home, RUN).read(None).at(20).config
    words = "a correction is on, but the framework applies none"
    for step, severity, action in ((16, "warning", "critical_growth"), (18, "error", "impossible")):
        trainer.recorder.report("correction_impossible", words, severity=severity, component="trl", step=step)
        trainer.train(3)
        controller.run_once()
        assert audit(store)[-1] == f"switched_on/{action}"  # the first is of an earlier correction
    assert words in rows_of(store)[-1]["words"]
    assert DirectiveFile(home, RUN).read(None).at(99).config != first


def test_records_on_their_way_do_not_lower_the_coverage(store: Store, trainer: Trainer) -> None:
    trainer.train(15)
    rest = {"sample_ids": ["late"], "token_ids": [np.arange(3)], "trainer_logprobs": [np.full(3, -1.0, np.float32)]}
    trainer.recorder.rollout(sample_ids=["early"], token_ids=[np.arange(3)], logprobs=[np.full(3, -1.0, np.float32)])
    trainer.recorder.training(step=14, **{**rest, "sample_ids": ["early"]})
    trainer.recorder.training(step=15, **rest)
    trainer.step = 16
    trainer.train(0)
    coverage = store.read("controller_coverage", runs=[RUN], first=[0], last=[15])["coverage"][0].as_py()
    assert coverage == 1.0
    trainer.recorder.training(step=20, **{**rest, "sample_ids": ["next"]})
    trainer.recorder.rollout(sample_ids=["next"], token_ids=[np.arange(3)], logprobs=[np.full(3, -1.0, np.float32)])
    trainer.train(0)
    # It never came
    assert store.read("controller_coverage", runs=[RUN], first=[0], last=[20])["coverage"][0].as_py() == 0.0


def test_records_that_came_late_do_not_lower_the_coverage(store: Store, trainer: Trainer) -> None:
    """A step is computed with them as they come."""
    trainer.train(15)
    lists = {"sample_ids": ["late"], "token_ids": [np.arange(3)]}
    trainer.recorder.training(step=15, trainer_logprobs=[np.full(3, -1.0, np.float32)], **lists)
    trainer.train(0)
    trainer.recorder.rollout(logprobs=[np.full(3, -1.0, np.float32)], **lists)
    assert trainer.recorder.flush(30)
    take_in(store)
    assert store.read("controller_coverage", runs=[RUN], first=[0], last=[15])["coverage"][0].as_py() == 1.0


@pytest.mark.parametrize("ahead", [timedelta(hours=-2), timedelta(hours=2)])
def test_a_trainer_that_does_not_answer_is_noted_once_it_can_have_heard(
    store: Store, trainer: Trainer, ahead: timedelta
) -> None:
    """`ahead`: its clock of ours."""

    def train(steps: int) -> None:
        trainer.train(steps)
        with store.transaction() as cursor:
            cursor.execute(
                "UPDATE step_summaries SET time = time + $ahead WHERE abs(epoch(computed_at - time)) < 900",
                {"ahead": ahead},
            )

    controller = switched_on(store, trainer)
    train(6)
    controller.run_once()
    assert audit(store) == ["switched_on/critical_growth"]  # made within the second in which it was told
    with store.transaction() as cursor:
        cursor.execute("UPDATE controller_actions SET time = time - INTERVAL 6 SECOND")
    train(1)
    controller.run_once()
    assert told(store) == ["switched_on", "not_acknowledged"]


@pytest.mark.parametrize(
    ("kept", "off", "said"),
    [
        ("nothing", False, "acknowledged/applied"),
        ("nothing", True, "switched_on/critical_growth"),
        ("before it was on", False, "acknowledged/applied"),
        ("while it was on", True, "refused/cool_down"),
    ],
)
def test_a_controller_whose_store_was_lost_goes_on_from_what_the_trainer_was_told(
    home: Path, store: Store, trainer: Trainer, kept: str, off: bool, said: str
) -> None:
    """`kept`: how old the journal is that the store was made from."""
    trainer.train(1)
    controller = Controller(store, lambda _: ARMED)
    controller.command({"run": RUN, "command": "armed", "by": "ann"})
    rows = {"nothing": None, "before it was on": _remembered(store)}
    controller = switched_on(store, trainer, 14)
    rows["while it was on"] = _remembered(store)
    if off:
        controller.command({"run": RUN, "command": "off", "by": "ann"})
    told = DirectiveFile(home, RUN).read(None).version
    with store.transaction() as cursor:
        cursor.execute("DELETE FROM controllers; DELETE FROM controller_actions")
        if (row := rows[kept]) is not None:
            store.execute(cursor, "controller_save", run=RUN, now=datetime.now(UTC), **row)
    with CorrectionSwitch(home, RUN, poll_seconds=0.01) as switch:
        trainer.train(4, switch=switch)
    Controller(store, lambda _: ARMED).run_once()
    # A trainer refuses directives that begin again with a former number, and what it applies is on.
    assert audit(store) == [said]
    assert DirectiveFile(home, RUN).read(None).version == told + said.startswith("switched_on")


def _remembered(store: Store) -> dict[str, str]:
    (row,) = records(store, [RUN]).values()
    return {"control": row["control"], "directives": row["directives"]}


def test_one_run_that_fails_keeps_no_other_waiting(home: Path, store: Store, trainer: Trainer) -> None:
    trainer.train(15)
    diagnosed(store, "critical", STALE)
    with store.transaction() as cursor:  # a state that a newer release would write, of a run that comes first
        cursor.execute("INSERT INTO step_summaries SELECT * REPLACE ('a run' AS run) FROM step_summaries")
        state = {"run": "a run", "control": "{}", "directives": "{}", "now": datetime.now(UTC)}
        store.execute(cursor, "controller_save", **state)
    controller = Controller(store, lambda _: ARMED)
    for _ in range(2):
        assert "a run: controller fails (StoreError: the controller's state" in controller.run_once()["problem"]
    assert audit(store) == ["switched_on/critical_growth"]
    assert DirectiveFile(home, RUN).read(None).version == 1


def test_after_a_return_to_a_checkpoint_it_counts_where_the_run_is_now(
    home: Path, store: Store, trainer: Trainer
) -> None:
    controller = switched_on(store, trainer, 30)
    file = DirectiveFile(home, RUN)
    assert file.read(None).at(32) is not None
    trainer.step = 10  # 29 was the newest step
    trainer.train(2)
    controller.command({"run": RUN, "command": "off", "by": "ann"})
    assert file.read(None).at(32).config is None
    assert file.read(None).at(11 + ARMED.notice_steps).config is None


def test_a_correction_that_needs_advantages_is_passed_over_without(store: Store, trainer: Trainer) -> None:
    needy = preset("prime-rl/dppo")
    trainer.train(15, advantages=False)
    diagnosed(store, "critical", STALE)
    Controller(store, lambda _: ARMED.model_copy(update={"correction": needy})).run_once()
    assert audit(store) == ["switched_on/critical_growth"]
    (action,) = rows_of(store)
    assert [each["preview"] is None for each in json.loads(action["details"])["tried"]] == [True, False]
    assert "was passed over: the effect cannot be previewed" in action["words"]


def test_previews_in_batches_are_previews(store: Store, trainer: Trainer, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer.train(15, spread=0.6)
    config = CorrectionConfig(is_level="sequence", is_mode="mask", is_lower=0.5, is_upper=5.0, normalize=True)
    (whole,) = (trial.preview for trial in gather.trials(store, RUN, 14, [config]))
    monkeypatch.setattr(gather, "_MOST_CELLS", 120)
    (parts,) = (trial.preview for trial in gather.trials(store, RUN, 14, [config]))
    assert whole is not None
    assert asdict(whole) == {
        name: value if name == "steps" else pytest.approx(value) for name, value in asdict(parts).items()
    }
    assert 0 < whole.masked_sequences < 1


def test_users_command_without_a_service(home: Path, store: Store, trainer: Trainer) -> None:
    trainer.train(15)
    store.close()

    def command(name: str, **more: object) -> list[str]:
        done = perform(Home(home), {"run": RUN, "command": name, "by": "ann", **more})
        return [f"{action['name']}/{action['reason']}" for action in done["actions"]]

    file = DirectiveFile(home, RUN)
    assert command("on") == ["switched_on/manual"]
    assert file.read(None).at(20) is not None
    assert command("off") == ["switched_off/manual"]
    assert command("off") == []
    assert file.read(None).at(20).config is None
    with store.home.lock():
        assert command("stop") == ["stopped/kill_switch"], "the service could not be asked: trainers go by its file"
        with pytest.raises(LogprobeError):
            command("on")
    assert file.read(None).at(20) is None
    for request in ({"run": RUN, "command": "of"}, {"run": "other", "command": "on"}):
        with pytest.raises(ConfigurationError):
            perform(Home(home), request)


def test_a_policy_that_changes_is_taken_over_and_a_wrong_one_is_not(store: Store) -> None:
    file = store.home.path / "logprobe.yaml"
    made = controller_part(store, threading.Event())
    (job,), action = made.jobs, made.actions[POLICY]
    for text, mode, problem in (
        ("", "suggest", None),
        ("correction: {mode: off}\n", "off", None),
        ("correction: {mode: armd}\n", "off", "logprobe.yaml:1"),
        ("correction: {mode: armed}\n", "armed", None),
    ):
        file.write_text(text)
        for said in (job.run_now().get("problem"), action.run({"run": "a"})["problem"]):
            assert said is None if problem is None else problem in said and "the previous version stays" in said
        assert action.run({"run": "a"})["mode"] == mode


def test_a_run_that_goes_back_to_a_checkpoint_from_before_the_switch(
    home: Path, store: Store, trainer: Trainer
) -> None:
    controller = switched_on(store, trainer)  # at step 14
    with CorrectionSwitch(home, RUN, poll_seconds=0.01) as switch:
        eventually(lambda: switch.current(99) is not None)
        trainer.train(6, switch=switch)
        diagnosed(store, "critical", STALE)
        controller.run_once()
        assert audit(store) == ["switched_on/critical_growth", "acknowledged/applied"]
        trainer.recorder.close()
        again = Trainer(home, store)
        again.recorder.begins(5)
        again.step = 5
        # What the trainer does meanwhile: the step it is at lies before the directive, which applies from 17 on
        assert [switch.current(step) is None for step in (5, 16, 17)] == [True, True, False]
        again.train(2, switch=switch)
        controller.run_once()
        assert audit(store)[2:] == ["switched_off/returned"], "critical was the attempt that was given up"
        eventually(lambda: switch.current(17) is None)
        again.train(1, switch=switch)
        controller.run_once()
        assert len(audit(store)) == 3, "the diagnosis of that attempt switches nothing on"
        diagnosed(store, "critical", STALE)
        controller.run_once()
        assert audit(store)[3:] == ["switched_on/critical_growth"], (
            "7 steps after the switch of 14, with a cool-down of 100"
        )
        eventually(lambda: switch.current(10) is not None)
        again.train(8, switch=switch)
        controller.run_once()
        assert audit(store)[4:] == ["acknowledged/applied"]
    assert again.recorder.close()


def test_what_a_given_up_attempt_said_of_a_correction_is_not_held_against_the_next(
    home: Path, store: Store, trainer: Trainer
) -> None:
    controller = switched_on(store, trainer)
    trainer.recorder.report("correction_impossible", "no log-probs of the engine", step=17)
    trainer.recorder.step(18, correction='{"fingerprint": "another"}')
    trainer.train(1)

    def said() -> tuple[int, str | None]:
        (heard,) = queries.controller_heard(store, run=RUN, first=0).to_pylist()
        return queries.controller_acks(store, run=RUN, first=0, last=99).num_rows, heard["impossible"]

    assert said() == (1, "no log-probs of the engine")
    trainer.recorder.close()
    again = Trainer(home, store)
    again.recorder.begins(13)
    again.step = 13
    again.train(1)
    assert said() == (0, None)
    controller.run_once()
    assert audit(store)[1:] == ["switched_off/returned"]
    assert again.recorder.close()
