"""SkyRL's callback on batches that SkyRL 0.3.0's own functions built and padded, handed over by its own callback handler (`skyrl_program.py`)."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from spool_contents import by_sample, health_events, rows

from logprobe.collectors.integrations.skyrl import Watch

STORED = Path(__file__).with_name("skyrl_0_3_0.npz")


class Batch(dict[str, Any]):
    """SkyRL's is a dictionary with metadata, too."""

    metadata = {"policy_prompt_boundaries": [(0, 2), (2, 4)], "pad_size": 2}  # noqa: RUF012


def stored(step: int) -> Batch:
    with np.load(STORED) as arrays:
        prefix = f"{step}."
        return Batch(
            {n.removeprefix(prefix): torch.from_numpy(arrays[n]) for n in arrays.files if n.startswith(prefix)}
        )


def trainer(name: str = "RayPPOTrainer") -> Any:
    sampling = SimpleNamespace(temperature=0.7)
    settings = SimpleNamespace(run_name="tiny", bf16=True, algorithm=SimpleNamespace(temperature=0.7))
    return type(
        name, (), {"cfg": SimpleNamespace(trainer=settings, generator=SimpleNamespace(sampling_params=sampling))}
    )()


def event(step: int, **fields: Any) -> Any:
    return SimpleNamespace(**{"global_step": step, "batch": None, "logs": None} | fields)


@pytest.fixture
def watch(home: Path, monkeypatch: pytest.MonkeyPatch) -> Watch:
    monkeypatch.setenv("LOGPROBE_HOME", str(home))
    return Watch()


def test_each_step_is_recorded_without_padding(home: Path, watch: Watch) -> None:
    for step in (1, 2):
        watch.step_ended(trainer(), event(step, batch=stored(step)))
        watch.logged(event(step, logs={"policy/loss": np.float32(0.5), "eval/all/x": 1.0, "text": "x"}))
    watch.ended()
    watch.process.recorder.close()
    trained = by_sample(home, "training")
    assert not rows(home, "rollout")  # the engine's plugin has them, under its own names
    assert set(trained) == {f"skyrl-{step}-{row}" for step in (1, 2) for row in range(4)}
    for step in (1, 2):
        batch = stored(step)
        for place in range(4):
            row, mask = trained[f"skyrl-{step}-{place}"], batch["loss_mask"][place] > 0
            first = int(mask.nonzero()[0])
            assert (row["step"], row["weight_version"]) == (step, str(step - 1))
            assert row["token_ids"] == batch["sequences"][place, -mask.shape[0] :][first:].tolist()
            assert row["trainer_logprobs"] == batch["action_log_probs"][place][first:].tolist()
            assert row["rollout_logprobs"] == batch["rollout_logprobs"][place][first:].tolist()
            assert row["group_id"] == f"{step}-{place // 2}"
            assert {span["version"] for span in row["rollout_versions"]} == {str(step - 1)}
    assert [(row["step"], dict(row["scalars"])) for row in rows(home, "step")] == [
        (s, {"policy/loss": 0.5}) for s in (1, 2)
    ]


def test_samples_of_an_asynchronous_trainer_have_no_version(home: Path, watch: Watch) -> None:
    watch.step_ended(trainer("FullyAsyncRayPPOTrainer"), event(1, batch=stored(1)))
    watch.process.recorder.close()
    assert not [span for row in rows(home, "rollout") for span in row["spans"] or [] if span["version"]]


def test_what_cannot_be_recorded_is_said(home: Path, watch: Watch) -> None:
    watch.step_ended(trainer(), event(1, batch=Batch(stored(1), action_log_probs=None)))
    unknown = stored(2)
    del unknown["loss_mask"]
    watch.step_ended(trainer(), event(2, batch=unknown))
    watch.process.recorder.close()
    assert not rows(home, "training")
    events = health_events(home)
    assert "nothing can be compared" in events["no_logprobs"][0]["message"]
    assert "has no loss_mask" in events["missing_key"][0]["message"]
    assert events["missing_key"][0]["sequences"] == len(unknown["sequences"])


def test_two_callbacks_of_one_trainer_record_it_once(home: Path, watch: Watch) -> None:
    """One that a script adds, and one of `logprobe run`."""
    watched, second = trainer(), Watch()
    for each in (watch, second):
        each.step_ended(watched, event(1, batch=stored(1)))
        each.logged(event(1, logs={"x": 1.0}))
    watch.process.recorder.close()
    assert second.process.recorder is None
    assert len(rows(home, "step")) == 1
    assert len({row["sample_id"] for row in rows(home, "training")}) == len(rows(home, "training"))


def test_without_a_home_nothing_is_recorded_and_that_is_said_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    idle = Watch()
    idle.step_ended(trainer(), event(2, batch=stored(1)))
    idle.step_ended(trainer(), event(1, batch=stored(1)))
    idle.logged(event(1, logs={"x": 1.0}))
    idle.ended()
    assert idle.process.recorder is None
    (warning,) = caplog.messages
    assert warning.startswith("logprobe: skyrl: nothing is recorded: no home")
