"""Trainers with a fault that no setting describes, on real forward passes: no setting is named; one that has a setting is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

PROOF = Path(__file__).resolve().parents[2] / "proof"


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the script keeps."""
    folder = tmp_path_factory.mktemp("trainers")
    with pytest.MonkeyPatch.context() as patched:
        patched.syspath_prepend(str(PROOF))
        import trainers

        assert trainers.main(folder, suite=True) == 0  # each situation is judged as expected
    return json.loads((folder / "trainers.json").read_text())


@pytest.fixture
def found(kept: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """What `bisect` says by model kind and fault."""
    return kept["found"]


def test_the_shipped_trainer_shifts_by_one_position(kept: dict[str, Any]) -> None:
    plain, later, earlier, late_logits = kept["shifts"]
    assert later[:-1] == pytest.approx(plain[1:])  # log-probs of the neighbours
    assert earlier[1:] == pytest.approx(plain[:-1])
    assert late_logits[:-1] != pytest.approx(plain[1:], abs=0.01)  # other logits, the same tokens
    assert late_logits != pytest.approx(plain, abs=0.01)


def test_a_setting_is_named_when_it_is_the_fault_and_never_otherwise(found):
    named, expected, departs = set(), set(), set()
    for kind, documents in found.items():
        for fault, document in documents.items():
            named |= {(kind, fault, knob) for knob in document["smallest_set"]}
            expected |= {(kind, fault, knob) for knob in document["expected"]}
            departs |= {fault} if document["departs"] == "trainer" else set()
    assert named == expected
    assert departs == {fault for documents in found.values() for fault in documents} - {"healthy"}


def test_where_no_setting_is_named_it_says_what_is_left(found):
    for documents in found.values():
        for document in documents.values():
            if not document["expected"] and document["departs"] == "trainer":
                assert document["residual"]["trainer"].startswith("not one of these settings; ")
                assert not [arm for arm in document["arms"] if arm["verdict"] in ("this is it", "contributes")]
    assert "falls with the prompt's length" in found["window"]["padding"]["residual"]["trainer"]
    assert "no token before position" in found["llama"]["context"]["residual"]["trainer"]
