"""The four recorded runs: two healthy ones, two faults at once, and growth that begins late."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from recorded_home import RECORDED, ingest_recorded

from logprobe.monitor.judging.diagnosing import diagnose
from logprobe.monitor.judging.document import DiagnosisDocument
from logprobe.monitor.reader import Reader, open_reader

ONSET = 500


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reader]:
    home = tmp_path_factory.mktemp("recorded") / "home"
    ingest_recorded(home, *RECORDED)
    ingest_recorded(home, "late-growth-mis", "late-growth-bf16")
    with open_reader(home) as reader:
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


def test_an_ordinary_run_in_bfloat16_is_healthy_until_it_grows(recorded: Reader) -> None:
    healthy = diagnose(recorded, "late-growth-bf16", steps=(None, ONSET - 1))
    assert (healthy["verdict"], healthy["correction"]["advice"]) == ("healthy", "not_needed")
    assert {finding["urgency"] for finding in healthy["findings"]} <= {"informational"}
    assert healthy["level"] is not None
    assert healthy["level"]["status"] == "as expected"
    grown = diagnose(recorded, "late-growth-bf16")
    assert (grown["verdict"], grown["layer"], grown["correction"]["advice"]) == ("critical", "objective", "enable")
    assert grown["since_step"] == pytest.approx(ONSET, abs=60)
    assert not any(finding["vetoes"] for finding in grown["findings"])


@pytest.mark.parametrize("run", ["late-growth", "late-growth-mis"])
def test_tokens_that_are_all_old_are_no_numerical_fault(recorded: Reader, run: str) -> None:
    """The second has log-probs that correlate below 0.5: as little as those of other tokens could, and more than their neighbours."""
    assert set(causes(diagnose(recorded, run, steps=(700, None)))) == {"staleness"}


def test_ends_that_a_sure_policy_rounds_to_certainty_are_no_placeholders(recorded: Reader) -> None:
    # Some of these ends have r exactly 0 where the much newer trainer is not sure any more.
    assert set(causes(diagnose(recorded, "late-growth-mis", steps=(None, 755)))) <= {"late_growth", "staleness"}
