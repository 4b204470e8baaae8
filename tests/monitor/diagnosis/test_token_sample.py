"""Tokens that a run is judged by are those of the view `tokens`, wherever their segments are: in the spool or in files of the archive."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from segments import RUN, records, sampled, trained
from store_contents import rows

from logprobe.collectors.spool.segments import SpoolWriter
from logprobe.monitor import queries
from logprobe.monitor.judging.tokens import from_table, layout
from logprobe.monitor.live.ingest import Ingester
from logprobe.monitor.metrics.lag import Versions
from logprobe.monitor.store import merging
from logprobe.monitor.store.store import Store

NAN, INF = math.nan, math.inf
NUMBERS = ("r", "t", "entropy")
SPANS = [
    {"start": 0, "end": 1, "version": "v1"},
    {"start": 1, "end": 3, "version": None},
    {"start": 2, "end": 4, "version": "v2"},
]
STATED = [{"start": 0, "end": 3, "version": "v1", "sampled_start": 0, "sampled_end": 3}, {"start": 3, "end": 4, "version": "v9", "sampled_start": 3, "sampled_end": 4}]  # fmt: skip
MASK = [False, True, True, False, True]
PART = {"trajectory": "parts", "prompt_token_ids": [9, 8]}


def sides(
    name: str, trained_fields: dict[str, Any], *sampled_rows: dict[str, Any]
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """A training record whose r comes from rollout records."""
    return trained(name, received=False, **trained_fields), list(sampled_rows)


# Name → a training record, and what engines recorded. Ids of `trained` and `sampled` are 0, 1, …
CASES = {
    "received": (trained("received", weight_version="v2", entropy=[0.1, 0.2, NAN, None]), []),
    "broken": (trained("broken", rollout_logprobs=[NAN, -9999.0, 0.5, 0.0], trainer_logprobs=[-1.0, 1.0, -INF, -3.0]), []),
    "null elements": (trained("null elements", rollout_logprobs=[-1.0, None, -2.0, -3.0], trainer_logprobs=[-1.0, -1.0, None, -3.0]), []),
    "all": sides("all", {"mask": [True, True, False, True]}, sampled("all", spans=SPANS)),
    "null versions": sides("null versions", {}, sampled("null versions", spans=None)),
    "masked": sides("masked", {"n": 5, "mask": MASK}, sampled("masked", 3, token_ids=[1, 2, 4], spans=SPANS)),
    "cut off": sides("cut off", {"n": 5, "mask": MASK}, sampled("cut off", 2, token_ids=[1, 2])),
    "longer": sides("longer", {"mask": None}, sampled("longer", 6, spans=SPANS)),
    "other ids": sides("other ids", {}, sampled("other ids", token_ids=[7, 7, 7, 7])),
    "stated": sides("stated", {"rollout_versions": STATED}, sampled("stated", spans=SPANS)),
    "stated alone": (trained("stated alone", rollout_versions=STATED, mask=[True, False, True, True]), []),
    "in parts": (
        trained("parts", received=False, n=6, mask=[False, False, True, True, False, True], token_ids=[9, 8, 0, 1, 5, 3]),
        [sampled("a", 2, **PART), sampled("b", 1, token_ids=[3], trajectory="parts", prompt_token_ids=[9, 8, 0, 1, 5])],
    ),
    "bad": (trained("bad", mask=[True]), []),
    "empty": (trained("empty", n=0), []),
    "never sampled": (trained("never sampled", received=False), []),
}  # fmt: skip
VIEW = """
SELECT sample_id, step, token_id, rollout_logprob AS r, trainer_logprob AS t, broken IS NOT NULL AS broken, entropy, weight_version
FROM tokens WHERE mask AND rollout_source <> 'missing' ORDER BY step, segment_id, row, position
"""


def sample(store: Store) -> list[dict[str, Any]]:
    """The tokens under the mask, as they are judged."""
    table = queries.diagnosis_tokens(store, run=RUN, steps=[0, 1], parts=1)
    tokens, (sequence, mask, _) = from_table(table, Versions({}, {}, {})), layout(table)
    assert tokens.sequence.tolist() == sequence[mask].tolist()
    columns = [getattr(tokens, name).tolist() for name in (*NUMBERS, "step", "token_id", "broken", "version")]
    return [
        dict(zip((*NUMBERS, "step", "token_id", "broken", "code"), row, strict=True))
        for row in zip(*columns, strict=True)
    ]


@pytest.mark.parametrize("merged", ["some in files", "all in files", "too much for memory"])
def test_judged_tokens_are_those_of_the_view(
    store: Store, home: Path, merged: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer, ingester = SpoolWriter(home, RUN, "writer"), Ingester(store)
    for number, (record, engine) in enumerate(CASES.values()):
        if engine:
            writer.write("rollout", records("rollout", *engine))
        writer.write("training", records("training", record))
        if merged == "some in files" and number == len(CASES) // 2:
            ingester.run_once()
            store.archive.merge()
    ingester.run_once()
    if merged == "all in files":
        store.archive.merge()
    if merged == "too much for memory":
        monkeypatch.setattr(merging, "FILE_BYTES", 1)
    found = sample(store)
    waits = len(store.archive)
    assert (waits > 0) == (merged == "some in files"), "nothing is merged for it"
    expected = rows(store, VIEW)
    assert len(expected) > 40
    assert len({row["sample_id"] for row in expected}) == len(CASES) - 3, "but the bad, the empty, the never sampled"
    codes: dict[str, int] = {}
    for row in expected:
        version = row.pop("weight_version")
        row["code"] = -1 if version is None else codes.setdefault(version, len(codes))
        row.pop("sample_id")
        for name in NUMBERS:
            row[name] = NAN if row[name] is None else row[name]
    assert len(codes) > 1
    assert {row["broken"] for row in expected} == {True, False}
    for mine, theirs in zip(found, expected, strict=True):
        for name, value in theirs.items():
            assert np.array_equal(mine[name], value, equal_nan=name in NUMBERS), (name, mine, theirs)
