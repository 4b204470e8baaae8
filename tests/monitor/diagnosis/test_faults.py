"""Every shipped fault fixture is diagnosed: the cause first, the layer, pairs both, healthy ones not at all."""

from __future__ import annotations

import json
from typing import Any

import pytest
from recorded_home import SAMPLE_DATA, ingest_recorded

from logprobe.monitor.home import Home
from logprobe.monitor.judging.diagnosing import diagnose
from logprobe.monitor.judging.signatures import kind_of
from logprobe.monitor.store.store import Store

EXPECTED = json.loads((SAMPLE_DATA / "faults" / "expected.json").read_text(encoding="utf-8"))
PAIRS = [name for name, expected in EXPECTED.items() if len(expected["causes"]) > 1]
SINGLE = [name for name, expected in EXPECTED.items() if len(expected["causes"]) == 1]
# Nothing recorded tells partial updates from updates that do not arrive at all, nor logits of the wrong place from another model's.
# Growth by batches that pile up is the lag's.
ALIKE = {"partial_weight_sync", "misaligned_tokens", "late_growth"}
# What nothing recorded declares is not named by elimination.
UNDECLARED = {"int8_weights": {None}, "vocab_padding": {"other_softmax"}, "step_jump": {"late_growth", "unknown"}}
HEALTHY = [name for name, expected in EXPECTED.items() if not expected["causes"]]


@pytest.fixture(scope="module")
def diagnoses(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    home = tmp_path_factory.mktemp("home")
    ingest_recorded(home, *(f"faults/{name}" for name in EXPECTED))
    with Store.open(Home(home)) as store:
        return {name: diagnose(store, f"faults/{name}") for name in EXPECTED}


def causes(diagnosis: dict[str, Any]) -> list[str]:
    return [finding["cause"] for finding in diagnosis["findings"]]


@pytest.mark.parametrize("name", SINGLE)
def test_the_cause_comes_first(diagnoses: dict[str, dict[str, Any]], name: str) -> None:
    expected = EXPECTED[name]
    alike = expected["acceptable"] if name in ALIKE else []
    first = next(iter(diagnoses[name]["findings"]), None)
    if name in UNDECLARED:
        assert (first and first["cause"]) in UNDECLARED[name]
        return
    assert first is not None
    assert first["cause"] in {expected["causes"][0], *alike}
    assert first["layer"] == expected["layer"]


@pytest.mark.parametrize("name", PAIRS)
def test_of_two_faults_both_are_named(diagnoses: dict[str, dict[str, Any]], name: str) -> None:
    assert set(causes(diagnoses[name])) >= set(EXPECTED[name]["causes"])
    assert (
        next(f["layer"] for f in diagnoses[name]["findings"] if f["cause"] == EXPECTED[name]["causes"][0])
        == EXPECTED[name]["layer"]
    )


@pytest.mark.parametrize("name", EXPECTED)
def test_noise_that_the_set_up_should_have_is_at_no_fault(diagnoses: dict[str, dict[str, Any]], name: str) -> None:
    """Rounding and quantisation are named, and nothing follows from them; every other fault decides the layer."""
    causes = EXPECTED[name]["causes"]
    noise = bool(causes) and kind_of(causes[0]) == "noise"
    named = [finding["urgency"] for finding in diagnoses[name]["findings"] if kind_of(finding["cause"]) == "noise"]
    assert set(named) <= {"informational"} or not noise
    expected = {"none", "objective"} if noise else {EXPECTED[name]["layer"]}
    expected |= {"unknown"} if name in UNDECLARED else set()
    assert diagnoses[name]["layer"] in expected


@pytest.mark.parametrize("name", HEALTHY)
def test_nothing_is_found_in_healthy_runs(diagnoses: dict[str, dict[str, Any]], name: str) -> None:
    assert diagnoses[name]["findings"] == []
    assert diagnoses[name]["layer"] == "none"
