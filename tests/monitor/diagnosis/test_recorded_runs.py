"""The recorded runs: two healthy ones, two faults at once, and growth that begins late, in float32 and in bfloat16."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from recorded_home import ingest_recorded

from logprobe.monitor.judging.diagnosing import diagnose
from logprobe.monitor.judging.document import DiagnosisDocument
from logprobe.monitor.reader import Reader, open_reader

ONSET = 500


@pytest.fixture(scope="module")
def recorded(recorded_runs: Path) -> Iterator[Reader]:
    with open_reader(recorded_runs) as reader:
        yield reader


def causes(diagnosis: DiagnosisDocument) -> list[str]:
    return [finding["cause"] for finding in diagnosis["findings"]]


@pytest.mark.parametrize(
    ("run", "steps"), [("v0-reference", (None, None)), ("v1-fixed", (0, 40)), ("v1-fixed", (150, 250))]
)
def test_healthy_runs_have_no_findings(recorded: Reader, run: str, steps: tuple[int | None, int | None]) -> None:
    diagnosis = diagnose(recorded, run, steps=steps)
    assert (diagnosis["layer"], diagnosis["findings"], diagnosis["correction"]["advice"]) == ("none", [], "not_needed")


def test_the_semantic_fault_comes_first_and_forbids_a_correction(recorded: Reader) -> None:
    diagnosis = diagnose(recorded, "v1-initial", steps=(100, 160))
    assert causes(diagnosis)[0] == "raw_logprobs"
    assert (diagnosis["verdict"], diagnosis["layer"], diagnosis["correction"]["advice"]) == (
        "critical",
        "semantic",
        "do_not_enable",
    )


def test_late_growth_is_off_policyness_since_its_onset(recorded: Reader) -> None:
    diagnosis = diagnose(recorded, "late-growth")
    assert causes(diagnosis) == ["staleness"]  # that it grew says nothing that the lag does not
    assert (diagnosis["layer"], diagnosis["correction"]["advice"]) == ("objective", "enable")
    assert diagnosis["verdict"] in {"growing", "critical"}
    assert diagnosis["since_step"] == pytest.approx(ONSET, abs=60)


def test_an_ordinary_run_in_bfloat16_is_healthy_until_it_grows(home: Path) -> None:
    ingest_recorded(home, "late-growth-bf16")
    with open_reader(home) as recorded:
        healthy = diagnose(recorded, "late-growth-bf16", steps=(None, ONSET - 1))
        grown = diagnose(recorded, "late-growth-bf16")
    assert (healthy["verdict"], healthy["correction"]["advice"]) == ("healthy", "not_needed")
    assert {finding["urgency"] for finding in healthy["findings"]} <= {"informational"}
    assert healthy["level"] is not None
    assert healthy["level"]["status"] == "as expected"
    assert (grown["verdict"], grown["layer"], grown["correction"]["advice"]) == ("critical", "objective", "enable")
    assert grown["since_step"] == pytest.approx(ONSET, abs=60)
    assert not any(finding["vetoes"] for finding in grown["findings"])


def test_tokens_that_are_all_old_are_no_numerical_fault(recorded: Reader) -> None:
    assert set(causes(diagnose(recorded, "late-growth", steps=(700, None)))) == {"staleness"}
