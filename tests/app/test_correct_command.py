"""`logprobe correct`: what it shows, does, foresees and refuses, without a service."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from processes import logprobe
from recorded_home import ingest_control, ingest_recorded, take_in

from logprobe.alerts.controller.standing import Standing
from logprobe.app.view.correction import Foreseen, foreseen, state_of
from logprobe.collectors import Recorder
from logprobe.collectors.correction import correct
from logprobe.collectors.correction.presets import preset
from logprobe.collectors.directives import DirectiveFile
from logprobe.monitor.home import Home
from logprobe.monitor.reader import open_reader
from logprobe.monitor.store.store import Store

RUN = "run"
STEPS = 6
SHAPE = (8, 40)


def batch(step: int) -> tuple[np.ndarray, np.ndarray]:
    """Rollout and trainer log-probs of a step, float32 [sequence, token]; their log-ratio spreads by 0.8."""
    random = np.random.default_rng(step)
    rollout = -random.exponential(1.0, SHAPE) - 0.01
    return rollout.astype(np.float32), np.minimum(rollout + random.normal(0, 0.8, SHAPE), -1e-3).astype(np.float32)


@pytest.fixture
def recorded(home: Path) -> Path:
    with Recorder(home, RUN) as recorder:
        for step in range(STEPS):
            rollout, trainer = batch(step)
            names = [f"s{step}-{row}" for row in range(SHAPE[0])]
            ids, mask = np.zeros(SHAPE, np.int64), np.ones(SHAPE, bool)
            recorder.training(
                step=step,
                sample_ids=names,
                token_ids=ids,
                mask=mask,
                trainer_logprobs=trainer,
                rollout_logprobs=rollout,
            )
        assert recorder.flush(120)
    with Store.open(Home(home)) as store:
        take_in(store)
    return home


def correction(home: Path, *arguments: str, code: int = 0, **environment: str) -> str:
    done = logprobe("correct", RUN, *arguments, "--home", home, code=code, **environment)
    return done.stdout + done.stderr


def test_a_milder_correction_that_would_be_taken_is_named() -> None:
    mis, tis = preset("mis"), preset("tis")
    document: Foreseen = {
        "run": RUN, "step": 5, "config": mis.to_dict(), "fingerprint": mis.fingerprint(), "preview": None, "refusal": None,
        "instead": tis.to_dict(),
    }  # fmt: skip
    assert ("instead", str(tis)) in foreseen(document)


def test_it_shows_and_switches(recorded: Path) -> None:
    assert "suggest, idle" in correction(recorded)
    assert "cool_down" not in correction(recorded, "on", "--force", LOGNAME="ann")
    state = json.loads(correction(recorded, "--json"))["state"]
    assert (state["phase"], state["from_step"]) == ("issued", STEPS - 1 + 5)
    assert "switched on by ann" in " ".join(correction(recorded).split())
    assert "kill switch set" in correction(recorded, "off")
    assert "the kill switch is set, so no correction applies" in " ".join(correction(recorded).split())
    assert DirectiveFile(recorded, RUN).read(None).stopped
    assert "released" in correction(recorded, "armed")
    assert not DirectiveFile(recorded, RUN).read(None).stopped
    assert json.loads(correction(recorded, "--json"))["state"]["mode"] == "armed"


def test_a_preview_is_what_a_trainer_would_measure(recorded: Path) -> None:
    found = json.loads(correction(recorded, "--preset", "mis", "--json", code=1))["preview"]
    config = preset("mis")
    reports = [correct(config, *batch(step)).report for step in range(1, STEPS)]
    masked = sum(report["masked_frac"] for report in reports) / len(reports)
    assert found["config"] == config.to_dict()
    assert (found["step"], found["preview"]["steps"]) == (STEPS - 1, [1, STEPS - 1])
    assert found["preview"]["tokens"] == (STEPS - 1) * SHAPE[0] * SHAPE[1]
    assert found["preview"]["masked_tokens"] == pytest.approx(masked)
    assert found["preview"]["masked_advantage"] is None
    assert found["refusal"]["reason"] == "masks_too_much"
    assert not DirectiveFile(recorded, RUN).path.exists()


def test_a_preview_of_the_policy_is_told_in_words(recorded: Path) -> None:
    (recorded / "logprobe.yaml").write_text("correction: {correction: {preset: tis}}\n")
    told = correction(recorded)
    assert "is_level=token, is_upper=2.0" in told
    assert "masked tokens     0.00%" in told
    assert "masked advantage  –" in told
    assert "refusal           none" in told
    assert "there is no preset" in correction(recorded, "--preset", "nothing-like-it", code=1)


def test_an_effect_that_another_version_judged_keeps_its_words_and_is_unknown(home: Path) -> None:
    ingest_recorded(home, "late-growth-mis", before_step=3)
    ingest_control(home, "late-growth-mis")
    with open_reader(home) as reader:
        state = state_of(reader, Home(home), "late-growth-mis", Standing.read(reader, "late-growth-mis"))
    assert state["effect"] == {"judgement": "unknown", "words": state["effect"]["words"], "step": 574}
    assert "K3 no longer grows" in state["effect"]["words"]
