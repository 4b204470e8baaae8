"""What is joined, as views, metrics and commands show it, on a real store; which records meet is in tests/unit/test_live.py."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from recorded_home import take_in
from segments import RUN, sampled, trained
from store_work import Fed

from logprobe.app.cli import main
from logprobe.app.doctor import examine
from logprobe.collectors import Recorder
from logprobe.monitor.analysis import slices
from logprobe.monitor.judging.gather import gather
from logprobe.monitor.live import sequences
from logprobe.monitor.live.placing import Part, trajectory
from logprobe.monitor.store.store import Store

# Two turns with a tool's answer (90, 91) between; of the first, token 7 was sampled and never sent. r is −1, −2, …, t = r + 0.5.
TOKENS, MASK = [5, 6, 90, 91, 8, 9], [True, True, False, False, True, True]
IN_PARTS = trained(
    "mine", 1, token_ids=TOKENS, n=6, mask=MASK, received=False, weight_version="4",
    trainer_logprobs=[-0.5, -1.5, 0.0, 0.0, -0.5, -1.5],
)  # fmt: skip
PARTS = (
    sampled("a/0", 3, token_ids=[5, 6, 7], version="2", prompt_length=10, cached_prefix_tokens=0, trajectory="mine"),
    sampled("b/0", 2, token_ids=[8, 9], version="4", prompt_length=14, cached_prefix_tokens=12, trajectory="mine"),
)


def check(fed: Fed, sample_id: str, **expected: Any) -> dict[str, Any]:
    (row,) = fed.rows("SELECT * FROM sequences WHERE sample_id = ?", sample_id)
    assert {name: row[name] for name in expected} == expected
    return row


def tokens(fed: Fed, sample_id: str) -> list[tuple[float | None, str | None]]:
    sql = "SELECT rollout_logprob AS r, weight_version AS v FROM tokens WHERE sample_id = ? ORDER BY position"
    return [(row["r"], row["v"]) for row in fed.rows(sql, sample_id)]


def test_sequences_tokens_metrics_and_slices_have_what_was_joined(fed: Fed) -> None:
    spans = [{"start": 0, "end": 1, "version": "v1"}, {"start": 1, "end": 3, "version": "v2"}]
    mask = [False, True, False, True, True]
    fed.feed(training=[trained("a", token_ids=[90, 0, 91, 1, 2], n=5, received=False, mask=mask), IN_PARTS])
    fed.feed(training=[trained("b", received=False, mask=[True, False, True, False])])
    routed = {"received": False, "routes": [11, 12, 13]}
    fed.feed(training=[trained("c", 2, routes=[11, 12] * 4), trained("d", 2, n=3, **routed)])
    fed.feed(rollout=[sampled("a", 3, spans=spans), sampled("b"), PARTS[0]])
    others = [sampled("c", routes=[11, 12, 11, 13, 12, 12, 11, 12]), sampled("d", 3, routes=[11, 12, 11])]
    fed.feed(rollout=[PARTS[1], *others])
    check(fed, "a", rollout_source="joined", alignment="masked", token_match=True, n=3, n_expected=3, n_total=5)
    assert tokens(fed, "a") == [(None, None), (-1, "v1"), (None, None), (-2, "v2"), (-3, "v2")]
    check(fed, "b", alignment="all", token_match=True, n=2, sum_d=1.0)
    assert tokens(fed, "b") == [(-1, "v1"), (-2, "v1"), (-3, "v1"), (-4, "v1")], "masked ones keep their places"
    row = check(fed, "mine", rollout_source="joined", joined_by="parts", alignment="masked", length_match=True, n=4)
    assert row["spans"] == [{"start": 0, "end": 2, "version": "2"}, {"start": 2, "end": 4, "version": "4"}]
    parts = [(part["sample_id"], part["start"], part["end"], part["cached_prefix_tokens"]) for part in row["parts"]]
    assert parts == [("a/0", 0, 2, 0), ("b/0", 2, 4, 12)]
    assert tokens(fed, "mine") == [(-1, "2"), (-2, "2"), (None, None), (None, None), (-1, "4"), (-2, "4")]
    found = {(r["step"], r["metric"]): r["value"] for r in fed.rows("SELECT step, metric, value FROM metrics")}
    assert [found[1, key] for key in ("backend.coverage", "weight_lag_mean", "length_mismatch_frac")] == [1, 1, 0]
    assert found[2, "routing_agreement"] == 8 / 11, "of other numbers of layers, too"
    table = slices.by(fed.store, RUN, "length", metrics=["routing_agreement"], steps=(2, 2)).to_pylist()
    assert {row["slice"]: row["routing_agreement"] for row in table} == {"2–3": 2 / 3, "4–7": 6 / 8}


def test_rows_that_a_trainer_masks_as_a_whole_have_no_other_ids(store: Store) -> None:
    """A padded row without a token under the mask has none to compare, as those of overlong answers."""
    ids, r = np.arange(20).reshape(4, 5), np.full((4, 5), -1.0)
    mask = np.ones((4, 5), int)
    mask[1] = 0
    with Recorder(store.home.path, RUN) as recorder:
        recorder.rollout(sample_ids=list("abcd"), token_ids=ids, logprobs=r, lengths=[5] * 4)
        recorder.training(step=1, sample_ids=list("abcd"), token_ids=ids, trainer_logprobs=r - 0.1, mask=mask)
    take_in(store)
    rows = store.query("SELECT sample_id, rollout_source, token_match FROM sequences ORDER BY 1").to_pylist()
    assert [row["token_match"] for row in rows] == [True, None, True, True]
    joins = gather(store, RUN).joins
    assert (joins.other_ids, joins.unaligned, joins.missing) == (0, 0, 0)


def test_many_batches_come_to_the_same_as_one(fed: Fed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sequences, "TOKENS_PER_BATCH", 100)
    lengths = np.random.default_rng(1).integers(0, 40, 60)
    fed.feed(rollout=[sampled(f"{i}", int(n)) for i, n in enumerate(lengths)])
    fed.feed(training=[trained(f"{i}", i // 8, int(n), received=False) for i, n in enumerate(lengths)])
    found = {
        row["sample_id"]: (row["n"], row["sum_d"]) for row in fed.rows("SELECT sample_id, n, sum_d FROM sequences")
    }
    assert found == {f"{i}": (n, n * 0.5) for i, n in enumerate(lengths)}


def test_tokens_that_fit_several_sequences_are_said_by_doctor_and_show(
    fed: Fed, capsys: pytest.CaptureFixture[str]
) -> None:
    long = {"n": 12, "token_ids": list(range(100, 112))}
    fed.feed(rollout=[sampled(name, **long) for name in ("r1", "r2")])
    fed.feed(training=[trained("t1", received=False, **long)])
    assert fed.rows("SELECT joined_by, sum_d FROM sequences") == [{"joined_by": "ambiguous", "sum_d": None}]
    fed.store.close()
    home, words = str(fed.store.home.path), "all sequences not joined: their tokens fit several"
    assert any(words in each.text for each in examine(home))
    main(["show", RUN, "--home", home])
    assert words in capsys.readouterr().out


def test_the_diagnosis_waits_for_the_engine_as_long_as_rules_do(fed: Fed) -> None:
    """Which steps still wait: tests/alerts/rules/test_steps_on_their_way.py."""
    fed.feed(rollout=[sampled("0")])
    fed.feed(training=[trained(f"{step}", step, received=False) for step in (0, 1)])
    joins = gather(fed.store, RUN).joins
    assert (joins.sequences, joins.missing) == (1, 0)
    with fed.store.transaction() as cursor:
        cursor.execute("UPDATE step_summaries SET computed_at = computed_at - INTERVAL 3 MINUTES")
    joins = gather(fed.store, RUN).joins
    assert (joins.sequences, joins.missing) == (2, 1)


def part(prompt_length: int | None, *tokens: int) -> Part:
    return Part({"prompt_length": prompt_length, "spans": []}, np.array(tokens), np.zeros(len(tokens), np.float32))


@pytest.mark.parametrize(
    ("parts", "expected"),
    [
        ([part(10, 5, 6), part(14, 8, 9)], [(0, 2), (2, 4)]),
        ([part(None, 5, 6), part(None, 8, 9)], [(0, 2), (2, 4)]),  # it is unknown how long prompts were
        ([part(10, 5, 6, 8), part(14, 8, 9)], [(0, 2), (2, 4)]),  # sampled on, and the next request sampled the same
        ([part(10, 5, 6), part(14, 8)], [(0, 2), (2, 3)]),  # the trainer appended a token of its own
        ([part(10, 5, 6), part(14, 7, 9)], None),
        ([part(14, 5, 6), part(10, 8, 9)], [(0, 2), (2, 4)]),  # prompts that shrink say nothing about places
    ],
)
def test_places_of_parts(parts: list[Part], expected: list[tuple[int, int]] | None) -> None:
    found = trajectory(np.array(TOKENS), np.array(MASK), parts)
    assert (found.placed and [(place.start, place.end) for place in found.placed]) == expected


def test_a_part_of_which_the_trainer_left_out_a_token() -> None:
    found = trajectory(np.array([5, 6, 7, 8]), np.array([True, False, True, True]), [part(3, 5, 6, 7), part(6, 8)])
    assert found.complete
    assert [place.theirs_P.tolist() for place in found.placed or ()] == [[0, 2], [0]]


def test_a_recorder_takes_the_names_of_all_requests_of_a_sequence(store: Store) -> None:
    with Recorder(store.home.path, RUN) as recorder:
        content = {"token_ids": [[1, 2], [3]], "trainer_logprobs": [[-1.0, -1.0], [-1.0]]}
        assert recorder.training(step=0, sample_ids=[("a/0", "b/0"), "c/0"], **content)
        assert not recorder.training(step=0, sample_ids=[()], token_ids=[[1]], trainer_logprobs=[[-1.0]])
    take_in(store)
    rows = store.query("SELECT sample_id, part_ids FROM training_sequences ORDER BY ALL").to_pylist()
    assert [tuple(row.values()) for row in rows] == [("a/0…b/0", ["a/0", "b/0"]), ("c/0", None)]
