"""What known-good runs of a setup allow to be said of a new one, and what not."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from diagnosis_simulation import Simulation, noisy
from recorded_home import SAMPLE_DATA, take_in

from logprobe.collectors.spool.segments import SpoolWriter
from logprobe.monitor.home import Home
from logprobe.monitor.judging.diagnosing import diagnose
from logprobe.monitor.judging.explain import diagnosed
from logprobe.monitor.judging.frame import Frame
from logprobe.monitor.judging.job import DiagnosisStage
from logprobe.monitor.judging.judgement import Difference, Remembered
from logprobe.monitor.judging.memory import known_level, settings_of
from logprobe.monitor.judging.setup import Setup
from logprobe.monitor.recorded import RecordedRun
from logprobe.monitor.service.turns import Turns
from logprobe.monitor.store.store import Store

DENSE = Setup(engines=({"dtype": "bfloat16", "architectures": ["Qwen3ForCausalLM"]},), trainer={"dtype": "float32"})
EXPERTS = Setup(engines=({"dtype": "bfloat16", "architectures": ["Qwen3MoeForCausalLM"]},), trainer=DENSE.trainer)
MODE = Difference("logprobs_mode", "processed_logprobs", "raw_logprobs")


def beginning(k3: float, setup: Setup = DENSE) -> Frame:
    """The first step of a run whose K3 is about `k3`: noise alone."""
    return Simulation(steps=1, prompts=16, length=32, trained=noisy(float(np.sqrt(2 * k3))), setup=setup).frame()


def runs(
    count: int, low: float = 5e-4, high: float = 7e-4, *differs: Difference, comparable: bool = True
) -> Remembered:
    return Remembered(count, low, high, (low + high) / 2, differs, comparable)


def test_a_run_of_a_known_setup_has_a_verdict_at_its_first_step() -> None:
    evidence = beginning(6e-4)
    assert diagnosed(evidence)["verdict"] == "calibrating"
    known = replace(evidence, remembered=runs(12), settings={"dtype": "bfloat16"})
    found = diagnosed(known)
    assert (found["verdict"], found["layer"], found["growth"]["verdict"]) == ("healthy", "none", "calibrating")
    assert found["level"] is not None
    assert found["level"]["settled"]
    assert found["level"]["source"] == "this setup had K3 5e-4 to 7e-4 in 12 runs"
    assert known_level(known, found) is None  # what it was taught it does not teach


@pytest.mark.parametrize(
    ("memory", "words"),
    [
        (None, None),
        (runs(1, 6e-4, 6e-4), "this setup had K3 6e-4 in 1 run; normal is known from 3 on"),
        (runs(2), "this setup had K3 5e-4 to 7e-4 in 2 runs; normal is known from 3 on"),
        (runs(12, 5e-4, 7e-4, MODE), ("no known-good run of this setup; 12 runs that had K3 5e-4 to 7e-4 differ in logprobs_mode "
         "(processed_logprobs then, raw_logprobs now): a difference, not known to be the cause")),
        (runs(12, 5e-2, 7e-2), "this setup had K3 5e-2 to 7e-2 in 12 runs"),  # far less than ever: one side's log-probs given to the other?
    ],
)  # fmt: skip
def test_what_is_not_known_to_be_normal_stays_calibrating(memory: Remembered | None, words: str | None) -> None:
    found = diagnosed(replace(beginning(6e-4), remembered=memory))
    assert found["verdict"] == "calibrating"
    assert found["level"] is not None
    assert not found["level"]["settled"]
    assert found["level"]["status"] == "as expected"
    assert words is None or (memory is not None and memory.words == words)


def test_log_probs_of_one_side_given_to_the_other_are_no_healthy_run() -> None:
    found = diagnosed(replace(beginning(1e-9), remembered=runs(12, 5e-5, 9e-5)))
    assert found["level"] is not None
    assert (found["verdict"], found["level"]["settled"]) == ("calibrating", False)


def test_known_good_runs_above_every_report_excuse_no_more_than_they_had() -> None:
    memory = runs(12, 5e-3, 7e-3)
    within, beyond = (diagnosed(replace(beginning(k3), remembered=memory)) for k3 in (6.5e-3, 1.6e-2))
    assert (within["verdict"], beyond["verdict"]) == ("healthy", "calibrating")
    assert beyond["level"] is not None
    assert beyond["level"]["status"] == "above"


def test_a_run_with_a_baseline_of_its_own_is_not_judged_by_others() -> None:
    evidence = beginning(6e-4)
    own = replace(evidence, remembered=runs(12), growth=replace(evidence.growth, baseline=1e-4))
    assert diagnosed(own)["verdict"] == "calibrating"


def test_a_setup_that_is_another_is_critical_only_beyond_the_reports() -> None:
    found = diagnosed(replace(beginning(3e-3), remembered=runs(12, 4e-5, 5e-5, MODE)))
    assert found["level"] is not None
    assert (found["verdict"], found["level"]["status"]) == ("calibrating", "above")


@pytest.mark.parametrize("memory", [runs(12), runs(3), runs(12, 5e-4, 7e-4, MODE)])
def test_far_above_known_good_runs_and_every_report_is_critical_at_once(memory: Remembered) -> None:
    evidence = beginning(1.5e-2)
    assert diagnosed(evidence)["verdict"] == "calibrating"  # the table alone: above, not far above
    found = diagnosed(replace(evidence, remembered=memory))
    assert found["level"] is not None
    assert (found["verdict"], found["level"]["status"], found["correction"]["advice"]) == (
        "critical",
        "far above",
        "do_not_enable",
    )
    assert found["level"]["source"] == memory.words


@pytest.mark.parametrize(
    "memory",
    [
        runs(2),
        runs(12, 5e-4, 7e-4, Difference("dtype", "float32", "bfloat16"), comparable=False),
    ],
)
def test_too_few_runs_or_another_level_to_expect_change_no_verdict(memory: Remembered) -> None:
    evidence = beginning(1.5e-2)
    alone, found = diagnosed(evidence), diagnosed(replace(evidence, remembered=memory))
    assert (alone["verdict"], alone["layer"], alone["correction"]) == (
        found["verdict"],
        found["layer"],
        found["correction"],
    )


@pytest.mark.parametrize("setup", [DENSE, EXPERTS])
def test_healthy_runs_of_one_setup_with_moving_entropy_are_never_critical(setup: Setup) -> None:
    """Other tasks and a sharper or flatter policy move the level by an order of magnitude and more, within what such setups have."""
    high = 2e-3 if setup is DENSE else 1e-1
    for k3 in np.geomspace(2e-5, 0.9 * high, 8):
        for least in (1e-5, 1e-4, 1e-3):
            found = diagnosed(replace(beginning(float(k3), setup), remembered=runs(12, least, 1.5 * least)))
            assert found["verdict"] in {"healthy", "calibrating"}, (k3, least)


def test_a_run_with_a_baseline_of_its_own_is_judged_by_it() -> None:
    evidence = beginning(1.5e-2)
    grown = replace(evidence, growth=replace(evidence.growth, verdict="healthy"), remembered=runs(12))
    found = diagnosed(grown)
    assert found["level"] is not None
    assert (found["verdict"], found["level"]["status"]) == (
        "watch",
        "above",
    )  # of the table: others do not count any more


def documents(change: Callable[[dict[str, Any], dict[str, Any]], None] = lambda engine, trainer: None) -> list[Any]:
    engine = {
        "summary": {"dtype": "bfloat16", "logprobs_mode": "processed_logprobs"},
        "effective": {"dtype": "bfloat16", "kernel": "a"},
    }
    trainer: dict[str, Any] = {"framework": "trl", "compute_dtype": "float32", "learning_rate": 1e-5, "run_name": "x"}
    change(engine, trainer)
    row = {"fingerprint": "f", "sequences": 1}
    return [
        {**row, "kind": "engine_config", "document": json.dumps(engine), "deciding": json.dumps(engine)},
        {**row, "kind": "trainer_config", "document": json.dumps(trainer), "deciding": None},
        {**row, "kind": "sampling_params", "document": '{"temperature": 0.7, "stop": ["x"]}', "deciding": None},
    ]  # fmt: skip


def test_settings_are_what_decides() -> None:
    assert settings_of(documents()) == {
        "dtype": "bfloat16",
        "effective.kernel": "a",
        "logprobs_mode": "processed_logprobs",
        "sampling.temperature": "0.7",
        "trainer.compute_dtype": "float32",
        "trainer.framework": "trl",
    }
    assert settings_of(documents(lambda _, trainer: trainer.update(learning_rate=1, run_name="y"))) == settings_of(
        documents()
    )


def test_without_a_side_no_setup_is_called_the_same() -> None:
    assert settings_of([]) == {}
    assert settings_of(documents()[1:]) == {}
    assert settings_of(documents()[:1]) == {}
    assert settings_of(documents(lambda _, trainer: trainer.pop("compute_dtype"))) == {}
    unknown = documents()
    unknown[0]["deciding"] = None  # an engine of which nothing is understood is like itself alone
    assert settings_of(unknown)["engine"] == "f"


def brought(home: Path, run: str, steps: int, change: Callable[[dict[str, Any]], None] = lambda summary: None) -> None:
    """The first steps of a recorded healthy run, as another run, of an engine with another summary and another seed."""
    recorded = RecordedRun(SAMPLE_DATA / "v0-reference")
    writer = SpoolWriter(home, run, "replay")
    for kind in recorded.kinds:
        table = recorded.table(kind)
        if kind in {"training", "step"}:
            table = table.filter(pc.less(table["step"], steps))
        if kind == "config":
            table = _changed(table, change, seed=len(run))
        writer.write(kind, table)


def _changed(table: pa.Table, change: Callable[[dict[str, Any]], None], seed: int) -> pa.Table:
    rows = table.to_pylist()
    for row in rows:
        if row["kind"] == "engine_config":
            document = json.loads(row["document"])
            document["summary"]["seed"] = seed
            change(document["summary"])
            row["document"] = json.dumps(document)
    return pa.Table.from_pylist(rows, table.schema)


def judged(store: Store) -> None:
    take_in(store)
    while Turns(DiagnosisStage(store)).run_once()["runs"]:
        pass


def test_healthy_runs_are_remembered_and_a_new_one_is_judged_by_them(home: Path) -> None:
    for number in range(3):
        brought(home, f"known-{'x' * number}", 205)
    brought(home, "short", 20)
    with Store.open(Home(home)) as store:
        judged(store)
        known = store.query("SELECT run, setup FROM diagnoses WHERE setup IS NOT NULL ORDER BY run").to_pylist()
        assert [row["run"] for row in known] == ["known-", "known-x", "known-xx"]  # a run without a verdict is none
        assert len({row["setup"] for row in known}) == 1  # a seed decides nothing
        brought(home, "new", 2)
        brought(home, "changed", 2, lambda summary: summary.update(block_size=16))
        brought(home, "other", 2, lambda summary: summary.update({f"setting{n}": n for n in range(5)}))
        take_in(store)
        new, changed, other = (diagnose(store, run) for run in ("new", "changed", "other"))
        assert (new["verdict"], new["growth"]["verdict"]) == ("healthy", "calibrating")
        assert new["level"] is not None
        assert new["level"]["remembered"] is not None
        assert new["level"]["remembered"]["runs"] == 3
        assert "known-" not in json.dumps(new), "it would outlive the deletion of that run"
        assert changed["verdict"] == "calibrating"
        assert changed["level"] is not None
        assert changed["level"]["remembered"] is not None
        assert changed["level"]["remembered"]["differs"] == [{"setting": "block_size", "then": "32", "now": "16"}]
        assert other["verdict"] == "calibrating"
        assert other["level"] is not None
        assert other["level"]["remembered"] is None

        with store.transaction() as cursor:  # one of them turned out to be ill, by an alert alone
            cursor.execute(
                "INSERT INTO alert_states BY NAME SELECT 'known-x' AS run, 'high' AS rule, 'critical' AS severity, "
                "'firing' AS phase, 'e' AS episode, now() AS changed_at, 'x' AS fingerprint, false AS told, '{}' AS document"
            )
        again = diagnose(store, "new")
        assert again["verdict"] == "calibrating"
        assert again["level"] is not None
        assert again["level"]["remembered"] is not None
        assert again["level"]["remembered"]["runs"] == 2
