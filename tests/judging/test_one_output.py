"""What one output says of a run does not contradict itself, whatever was judged and accepted."""

from __future__ import annotations

import pytest
import yaml
from judging.test_cases import CASES, frames

from logprobe.monitor.judging.document import DiagnosisDocument, leading
from logprobe.monitor.judging.explain import diagnosed
from logprobe.monitor.judging.judgement import GROWS, Acceptance
from logprobe.monitor.judging.signatures import UNKNOWN

LOOKED_AT = ("drift", "healthy_dense", "jump", "missed_updates", "one_rank_late", "turn_start_late")


@pytest.mark.parametrize("name", LOOKED_AT)
def test_one_output_says_one_thing(name: str) -> None:
    (path,) = (path for path in CASES if path.stem == name)
    for frame, _ in frames(yaml.safe_load(path.read_text(encoding="utf-8"))):
        found = diagnosed(frame)
        causes = [finding["cause"] for finding in found["findings"] if finding["cause"] != UNKNOWN]
        accepted = diagnosed(frame, [Acceptance(cause, "by choice", up_to=10.0) for cause in causes])
        assert (contradictions(found), contradictions(accepted)) == ([], [])


def contradictions(document: DiagnosisDocument) -> list[str]:
    findings, correction, first = document["findings"], document["correction"], leading(document)
    grows = document["growth"]["verdict"] in GROWS
    told = [finding["explanation"] for finding in findings]
    applies = {
        "another layer than that of the finding that leads": first is not None and first["layer"] != document["layer"],
        "another step than that of the finding that leads": first is not None
        and first["since_step"] not in {None, document["since_step"]},
        "two steps of one finding": any(
            f["since_step"] is not None and "since step" in f["explanation"] for f in findings
        ),
        "the same twice": len(set(told)) < len(told),
        "a remedy that corrects, against the advice": correction["advice"] != "enable"
        and any("mportance sampling" in finding["fix"] for finding in findings),
        "growth that is denied": grows and "does not grow" in correction["why"],
    }
    return [words for words, true in applies.items() if true]
