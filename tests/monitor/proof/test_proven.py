"""Experiments in the store and what they add to a diagnosis."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest
from diagnoses import diagnosis, finding

from logprobe.app.text.diagnosis import arm_cells
from logprobe.collectors.errors import ConfigurationError
from logprobe.monitor.home import Home
from logprobe.monitor.judging.proven import latest, with_experiment
from logprobe.monitor.proof.storing import record
from logprobe.monitor.reader import open_reader
from logprobe.monitor.store.store import Store


def _arm(knob: str, cause: str | None, removed: float | None, verdict: str) -> dict:
    return {
        "knob": knob, "setting": "safe", "side": "engine", "k3": 1e-9, "removed": removed, "interval": [0.9, 1.0],
        "tokens_per_s": 50.0, "verdict": verdict, "note": "", "cause": cause, "speed": [0.5, 0.45, 0.55],
    }  # fmt: skip


FOUND = {
    "departs": "engine", "departs_all": ["engine"], "why": "a fresh engine departs", "smallest_set": ["dtype"], "parity": True,
    "baseline": {"k3": 2e-3, "noise_floor": 0.0, "tokens_per_s": 100.0, "legs": {}},
    "arms": [_arm("dtype", "low_precision", 0.97, "this is it"), _arm("max_num_seqs", "batch_variance", 0.0, "innocent")],
    "not_measured": [],
}  # fmt: skip


def _finding(cause: str, confidence: float) -> dict:
    return finding(cause, confidence=confidence, evidence={"k3_kl": 2e-3}, explanation="Seen in numbers.")


def _diagnosis(*findings: dict) -> dict:
    return diagnosis("critical", layer="inference_path", findings=findings)


def test_a_proven_cause_ranks_above_inferred_ones_and_names_what_was_measured():
    found = with_experiment(_diagnosis(_finding("quantized_rollout", 0.8), _finding("low_precision", 0.4)), FOUND)
    first, second = found["findings"]
    assert (first["cause"], first["confidence"], second["cause"]) == ("low_precision", 1.0, "quantized_rollout")
    assert first["evidence"] == {"proven_by": "dtype = safe", "removed": 0.97, "k3_kl": 2e-3}
    assert first["explanation"].startswith("Proven by experiment: with dtype = safe, 97% of the engine's K3 is gone.")
    json.dumps(found, allow_nan=False)


def test_a_cause_that_numbers_did_not_show_is_added_and_forbids_a_correction():
    before = {**_diagnosis(), "layer": "none", "correction": {"advice": "enable", "why": "policies differ"}}
    found = with_experiment(before, FOUND)
    assert [each["cause"] for each in found["findings"]] == ["low_precision"]
    assert (found["layer"], found["correction"]["advice"]) == ("inference_path", "do_not_enable")


def test_an_experiment_that_found_nothing_changes_nothing():
    nothing = {**FOUND, "arms": [], "smallest_set": [], "departs": "none", "departs_all": []}
    before = _diagnosis(_finding("low_precision", 0.4))
    assert with_experiment(before, nothing) == before


def test_without_an_experiment_it_says_which_one_would_decide():
    alike = with_experiment(_diagnosis(_finding("quantized_rollout", 0.4), _finding("low_precision", 0.4)), None)
    (missing,) = alike["not_measured"]
    assert missing["how"].startswith(
        "run: logprobe bisect r --model VERSION=PATH --knobs kv_cache_dtype,quantization,dtype"
    )
    sure = _diagnosis(_finding("quantized_rollout", 0.95), _finding("low_precision", 0.4))
    assert with_experiment(sure, None) == sure


def test_the_newest_experiment_is_kept_once_and_read_back(home: Path):
    place = Home(home)
    with Store.open(place):
        pass
    for _ in range(2):
        record(place, "r", "bisect", FOUND, "ada")
    record(place, "r", "score", {"departs": "none"}, "ada")
    with open_reader(place) as reader:
        found = latest(reader, "r", "bisect")
        assert (found["smallest_set"], found["author"]) == (["dtype"], "ada")
        assert datetime.fromisoformat(found["at"]) <= datetime.now(UTC)
        assert latest(reader, "other", "bisect") is None
        assert reader.query("SELECT kind, departs FROM experiments ORDER BY kind").to_pylist() == [
            {"kind": "bisect", "departs": "engine"},
            {"kind": "score", "departs": "none"},
        ]
    with pytest.raises(ConfigurationError, match="pass score or bisect"):
        record(place, "r", "other", FOUND, "ada")


def test_the_page_and_the_command_show_arms_with_their_share():
    assert [arm_cells(arm, FOUND)[0] for arm in FOUND["arms"]] == ["dtype", "max_num_seqs"]
    assert arm_cells(FOUND["arms"][0], FOUND)[3:] == [
        "97.0%",
        "90% … 100%",
        "×0.50 [0.45, 0.55]",
        "–",
        "this is it",
        "–",
    ]
