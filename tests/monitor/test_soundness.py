"""Which rows of segments can be used, looked at one by one or together."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from segments import RUN, records, sampled, trained

from logprobe.collectors.spool.segments import Segment, SegmentPath
from logprobe.monitor.live.soundness import sound_rows, sound_together


def segment(kind: str, number: int, *rows: dict[str, Any]) -> Segment:
    where = SegmentPath(Path(f"x/y/{number}"), RUN, "w", number, kind, 0)
    return Segment(where, records(kind, *rows), 0, f"segment {number}", "w", number)


TRAINED = [
    segment("training", 1, trained("a", 1), trained("b", 1)),
    segment("training", 2),
    segment("training", 3, trained("c", 2, n=7)),
    segment("training", 4),
]
SAMPLED = [segment("rollout", 1, sampled("a")), segment("rollout", 2, sampled("b"), sampled("c"))]


@pytest.mark.parametrize("segments", [TRAINED, SAMPLED], ids=["training", "rollout"])
def test_together_they_have_the_rows_and_tokens_that_each_has_alone(segments: list[Segment]):
    together = sound_together(segments)
    assert together is not None
    assert [asdict(each) for each in together] == [asdict(sound_rows(each)) for each in segments]


@pytest.mark.parametrize("wrong", [{"step": None}, {"step": -(1 << 63)}, {"mask": [True]}])
def test_one_row_that_cannot_be_used_has_each_segment_looked_at(wrong: dict[str, Any]):
    assert sound_together([*TRAINED, segment("training", 5, trained("d", 3), trained("e", 3) | wrong)]) is None
