"""The document of a diagnosis: what is not known, what is accepted, and its keys; causes are cases of `tests/judging`."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from diagnosis_simulation import Simulation, noisy, tempered

from logprobe.monitor.judging.document import DiagnosisDocument, FindingDocument
from logprobe.monitor.judging.explain import diagnosed
from logprobe.monitor.judging.frame import Frame
from logprobe.monitor.judging.judgement import Acceptance
from logprobe.monitor.judging.records import Joins, Series, WeightRecord, Weights
from logprobe.monitor.judging.setup import from_documents

RAW = {"summary": {"logprobs_mode": "raw_logprobs", "dtype": "float32"}}
HOT = {"temperature": 0.7, "top_p": 1.0, "top_k": 0, "min_p": 0.0}


def setup(**documents: dict) -> object:
    return from_documents(
        {"kind": kind, "fingerprint": kind, "document": json.dumps(document), "sequences": 1}
        for kind, document in documents.items()
    )


def within(whole: Frame, *steps: int) -> Frame:
    """The sums of some steps, and nothing else that is known of a run."""
    return Frame(whole.series.within(np.array(steps)), whole.strata.within(np.array(steps)))


def names(diagnosis: DiagnosisDocument) -> list[str]:
    return [finding["cause"] for finding in diagnosis["findings"]]


def test_nothing_recorded_is_unknown() -> None:
    diagnosis = diagnosed(within(Simulation(steps=1).frame(), 9))
    assert (diagnosis["verdict"], diagnosis["layer"], diagnosis["findings"]) == ("no_data", "unknown", [])
    assert [item["what"] for item in diagnosis["not_measured"]] == ["the mismatch"]


def test_a_trainer_only_run_is_unknown_and_says_how_to_measure() -> None:
    whole = Simulation().frame()
    columns = {name: (values if name == "step" else values * 0) for name, values in whole.series.columns.items()}
    nothing = replace(
        whole,
        series=Series(columns),
        strata=whole.strata.within(np.array([], np.int64)),
        recorded=None,
        joins=Joins(sequences=384, missing=384),
    )
    diagnosis = diagnosed(nothing)
    assert diagnosis["layer"] == "unknown"
    assert diagnosis["findings"] == []
    assert {"the mismatch", "the engine's configuration", "sampling params"} <= {
        item["what"] for item in diagnosis["not_measured"]
    }
    assert all(item["why"] and item["how"] for item in diagnosis["not_measured"])
    assert diagnosis["correction"]["advice"] == "do_not_enable"


def test_a_configuration_without_tokens_is_told_without_numbers() -> None:
    whole = Simulation(setup=setup(engine_config=RAW, sampling_params=HOT)).frame()
    diagnosis = diagnosed(replace(within(whole, *range(90, 100)), setup=whole.setup))
    assert names(diagnosis) == ["raw_logprobs"]
    assert "nan" not in diagnosis["findings"][0]["explanation"]
    assert diagnosis["findings"][0]["confidence"] == 0.95


def test_what_a_finding_hides_is_not_measured() -> None:
    def shift(columns: object) -> None:
        columns.r[:, 1:] = columns.r[:, :-1].copy()

    diagnosis = diagnosed(Simulation(change=shift).frame())
    assert names(diagnosis) == ["misaligned_tokens"]
    assert diagnosis["findings"][0]["evidence"]["shift"] == 1
    assert "the inference path and the objective" in {item["what"] for item in diagnosis["not_measured"]}


@pytest.mark.parametrize(
    ("column", "joins", "cause"),
    [
        ("other_ids", Joins(sequences=384, seen_by_engine=384, other_ids=2), "retokenization"),
        ("unaligned", Joins(sequences=384, seen_by_engine=384, unaligned=2), "retokenization"),
        ("missing_tokens", Joins(sequences=384, tokens=6144, seen_by_engine=382, missing=2, missing_tokens=32), "missing_logprobs"),
    ],
)  # fmt: skip
def test_what_joins_counted_begins_with_the_step_in_which_they_did(column: str, joins: Joins, cause: str) -> None:
    whole = Simulation().frame()
    count = np.where(whole.series.step >= 7, 1.0, 0.0)
    found = diagnosed(replace(whole, series=Series({**whole.series.columns, column: count}), joins=joins))
    (finding,) = [each for each in found["findings"] if each["cause"] == cause]
    assert finding["since_step"] == 7


def test_noise_of_unknown_age_is_no_confident_guess() -> None:
    def forget(columns: object) -> None:
        columns.version[:] = np.nan

    diagnosis = diagnosed(Simulation(trained=noisy(0.15), change=forget).frame())
    assert diagnosis["layer"] == "none"
    assert all(
        finding["confidence"] < 0.5 and finding["urgency"] == "informational" for finding in diagnosis["findings"]
    )
    assert "staleness" in {item["what"] for item in diagnosis["not_measured"]}


def test_without_raw_tokens_the_diagnosis_says_what_that_costs() -> None:
    diagnosis = diagnosed(Simulation(trained=noisy(1e-3), keep_tokens=False).frame())
    assert diagnosis["layer"] == "none"
    assert any("raw tokens" in item["why"] for item in diagnosis["not_measured"])


def test_the_document_is_json_and_has_the_agreed_keys() -> None:
    document = json.loads(json.dumps(diagnosed(Simulation(sampled=tempered(0.7)).frame()), allow_nan=False))
    assert list(document) == list(DiagnosisDocument.__annotations__)
    assert list(document["findings"][0]) == list(FindingDocument.__annotations__)


def test_an_accepted_finding_stays_visible_and_neither_alarms_nor_vetoes() -> None:
    load = WeightRecord("1", 1, "engine", None, True, None, None, tensors=100, checksum=None)
    weights = Weights((load, replace(load, version="2", step=2, tensors=90)))
    evidence = Simulation(trained=noisy(0.1), weights=weights).frame()
    assert diagnosed(evidence)["findings"][0]["vetoes"]
    diagnosis = diagnosed(evidence, [Acceptance("partial_weight_sync", "as measured", up_to=10.0, by="me")])
    found = diagnosis["findings"][0]
    assert (found["cause"], found["urgency"], found["vetoes"]) == ("partial_weight_sync", "informational", False)
    assert diagnosis["verdict"] == "calibrating"
    assert found["accepted"] is not None
    assert found["accepted"]["because"] == "as measured"


def test_a_finding_comes_back_above_what_was_accepted() -> None:
    evidence = Simulation(sampled=tempered(0.7)).frame()
    k3 = evidence.gap.k3
    accept = lambda limit: diagnosed(evidence, [Acceptance("temperature_mismatch", "known", limit)])["findings"][0]
    assert [accept(limit)["accepted"] is None for limit in (2 * k3, k3 / 2)] == [False, True]
    assert accept(2 * k3)["vetoes"]  # importance weights of a wrong distribution stay wrong
