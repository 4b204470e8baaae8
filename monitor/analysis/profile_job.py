"""The profile job: from raw tokens to token-level profiles, for the steps that were computed again since they were
profiled.

Beside ingest and not in it: the sums cost as much as the statistics do, and r of a joined sequence is not there yet
when its training record arrives. A step's rows are replaced all at once, together with the revision of the step that
they stand for; data that arrives meanwhile brings a newer revision, and the step is profiled again. Nothing counts
twice.

It needs raw tokens. A step whose raw tokens are gone keeps the profile it has: one from more tokens is never replaced
by one from fewer.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from logprobe.collectors.clock import Time
from logprobe.collectors.errors import QueryError
from logprobe.collectors.kernel.pairs import PAIRS, SIDES
from logprobe.collectors.kernel.statistics import ZERO_IS_PLACEHOLDER
from logprobe.collectors.recorder.arrays import offsets_of, segment_sums
from logprobe.monitor import queries, ragged
from logprobe.monitor.analysis.profiles import Accumulator, place
from logprobe.monitor.live.sequence_rows import align, source_logprobs
from logprobe.monitor.store.store import Store
from logprobe.monitor.store.token_lists import lists

STEPS_PER_BATCH: Final = 256  # of one transaction
TOKENS_PER_BATCH: Final = 8_000_000  # a second or two of work, after which the service may stop
TOKENS_PER_READ: Final = 2_000_000
_REST_SECONDS: Final = 15.0  # of a run whose raw tokens cannot be read
_OF_TRAINER: Final = ("trainer_logprobs", "current_logprobs", "reference_logprobs")


@dataclass(frozen=True, slots=True)
class ProfileReport:
    """Result of one run of the job, in tokens under the mask."""

    steps: int
    tokens: int
    seconds: float
    problem: str | None = None  # which runs cannot be profiled now, and why; they are tried again


class _Resting:
    """Runs whose raw tokens could not be read: each is left alone for a while, so that it holds up no other."""

    def __init__(self, time: Time) -> None:
        self._time = time
        self._runs: dict[str, tuple[float, str]] = {}

    def now(self) -> list[str]:
        """Return the runs that rest. One whose rest ends during a piece of work is not done."""
        moment = self._time.monotonic()
        self._runs = {run: rest for run, rest in self._runs.items() if rest[0] > moment}
        return list(self._runs)

    def add(self, run: str, error: Exception) -> None:
        """Have a run tried again after a rest."""
        self._runs[run] = (self._time.monotonic() + _REST_SECONDS, f"{run}: raw tokens cannot be read ({error})")

    @property
    def problem(self) -> str | None:
        """Return the errors of the runs that rest, or None if none does."""
        return "; ".join(words for _, words in self._runs.values()) or None


class ProfileJob:
    """Profiles steps of a store. One per store, used by one thread at a time."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._resting = _Resting(store.time)

    def run_once(self) -> ProfileReport:
        """Profile some of the steps that are due, if there are any.

        Raises:
            StoreError: the store or the disk refused; the steps stay due.
        """
        started = time.perf_counter()
        resting = self._resting.now()
        due = queries.profile_due(self._store.kept, steps=STEPS_PER_BATCH, tokens=TOKENS_PER_BATCH, resting=resting)
        tokens = self._of_each_run(due) if due.num_rows else 0
        return ProfileReport(due.num_rows, tokens, time.perf_counter() - started, self._resting.problem)

    def _of_each_run(self, due: pa.Table) -> int:
        """Profile steps of several runs together; when their tokens cannot be read, each run by itself: one at fault
        holds up no other."""
        runs = due["run"].unique().to_pylist()
        try:
            return self._profile(due)
        except QueryError as error:
            if len(runs) == 1:
                self._resting.add(runs[0], error)
                return 0
            return sum(self._of_each_run(due.filter(pc.equal(due["run"], run))) for run in runs)

    def _profile(self, due: pa.Table) -> int:
        count = due.num_rows
        sums = {pair: Accumulator(count, zero_is_placeholder=pair in ZERO_IS_PLACEHOLDER) for pair in PAIRS}
        tokens = np.zeros(count, np.int64)
        chosen = due.select(["run", "step"]).append_column("place", pa.array(np.arange(count)))
        # Between looking up where raw tokens lie and reading them, no file may go away.
        with self._store.holding_files():
            for batch in _batches(queries.profile_sequences(self._store, chosen)):
                tokens += self._add(batch, count, sums)
        self._write(due, tokens, sums)
        return int(tokens.sum())

    def _add(self, batch: pa.Table, count: int, sums: dict[str, Accumulator]) -> NDArray[np.int64]:
        """Add a batch to `sums` of `count` steps; return its tokens under the mask by step."""
        lists = self._lists(batch)
        batch = batch.take(lists["number"])
        lengths_S = ragged.lengths(lists["token_ids"])
        mask_N = ragged.flat_mask(lists["mask"], lengths_S)
        tokens = place(batch["place"].to_numpy(), lengths_S, mask_N)
        sides = {name: _side(lists[name], lengths_S) for name in _OF_TRAINER}
        sides["rollout_logprobs"] = _rollout_side(lists, lengths_S)
        for pair, (behaviour, policy) in SIDES.items():
            (b_N, has_b_S), (p_N, has_p_S) = sides[behaviour], sides[policy]
            if (has_b_S & has_p_S).any():
                sums[pair].add(tokens, b_N, p_N, np.repeat(has_b_S & has_p_S, lengths_S))
        return np.bincount(tokens.step[mask_N], minlength=count)

    def _lists(self, batch: pa.Table) -> pa.Table:
        """Token lists of training records by ``number``, with the engine's where r comes from there."""
        numbers = pa.array(np.arange(batch.num_rows))
        keys = batch.select(["segment_id", "row"]).append_column("number", numbers)
        of_rollouts = batch.select(["rollout_segment", "rollout_row"]).rename_columns(["segment_id", "row"])
        of_rollouts = of_rollouts.append_column("number", numbers).filter(of_rollouts["segment_id"].is_valid())
        trained = lists(self._store, "profile_training_lists", "training", keys)
        if not of_rollouts.num_rows:
            nothing = {"rollout_token_ids": pa.list_(pa.int32()), "logprobs": pa.list_(pa.float32())}
            for name, kind in nothing.items():
                trained = trained.append_column(name, pa.nulls(trained.num_rows, kind))
            return trained
        sampled = lists(self._store, "profile_rollout_lists", "rollout", of_rollouts)
        parts = queries.profile_parts(self._store, of_rollouts)
        return _beside(trained, sampled, parts)

    def _write(self, due: pa.Table, tokens: NDArray[np.int64], sums: dict[str, Accumulator]) -> None:
        replaced = tokens >= due["profiled"].to_numpy()
        rows = pa.concat_tables([_stored(pair, total.rows(), due, replaced) for pair, total in sums.items()])
        state = pa.table(
            {
                "run": due["run"],
                "step": due["step"],
                "revision": due["revision"],
                "tokens": np.where(replaced, tokens, due["profiled"].to_numpy()),
            }
        )
        with self._store.transaction() as cursor:
            self._store.execute(cursor, "forget_steps", due.filter(pa.array(replaced)), table="profiles")
            self._store.execute(cursor, "append", rows, table="profiles")
            self._store.execute(cursor, "replace", state, table="profiled_steps")


def _stored(pair: str, rows: pa.Table, due: pa.Table, replaced: NDArray[np.bool_]) -> pa.Table:
    """Return a pair's profiles of the steps that get new ones."""
    rows = rows.filter(pa.array(replaced[rows["place"].to_numpy()]))
    place = rows["place"]
    return (
        rows.append_column("run", due["run"].take(place))
        .append_column("pair", pa.repeat(pair, rows.num_rows))
        .append_column("step", due["step"].take(place))
        .drop_columns("place")
    )


def _beside(trained: pa.Table, sampled: pa.Table, parts: pa.Table) -> pa.Table:
    """Training records, by number, with ``rollout_token_ids`` and ``logprobs`` of their rollout records."""
    made = trained.filter(pc.is_in(trained["number"], parts["number"]))
    parts = parts.filter(pc.is_in(parts["number"], made["number"])).sort_by("number")
    places = {number: place for place, number in enumerate(sampled["number"].to_pylist() + parts["number"].to_pylist())}
    taken = pa.array([places.get(number) for number in trained["number"].to_pylist()], pa.int64())
    ids = pa.chunked_array([*sampled["token_ids"].chunks, _masked(made)], pa.list_(pa.int32()))
    values = pa.chunked_array([*sampled["logprobs"].chunks, *parts["logprobs"].chunks], pa.list_(pa.float32()))
    return trained.append_column("rollout_token_ids", ids.take(taken)).append_column("logprobs", values.take(taken))


def _masked(made: pa.Table) -> pa.Array:
    """Return the ids of the tokens under the mask, in whose places the log-probs of several requests are."""
    lengths_S = ragged.lengths(made["token_ids"])
    mask_N = ragged.flat_mask(made["mask"], lengths_S)
    ids_N = ragged.flat_ids(made["token_ids"])[mask_N]
    offsets = offsets_of(segment_sums(mask_N, offsets_of(lengths_S), np.int64))
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), ids_N)


def _side(column: pa.ChunkedArray, lengths_S: NDArray[np.int64]) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
    """Return the log-probs [N], and which sequences have them [S]."""
    values = ragged.flat_floats(column, lengths_S)
    present = np.asarray(column.is_valid())
    return (np.full(int(lengths_S.sum()), np.nan, np.float32) if values is None else values), present


def _rollout_side(lists: pa.Table, lengths_S: NDArray[np.int64]) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
    """Return the engine's side: as received, or from the rollout record, aligned as the join aligned it."""
    r_N, has_r_S = _side(lists["rollout_logprobs"], lengths_S)
    joined_S = np.asarray(lists["logprobs"].is_valid()) & ~has_r_S
    if joined_S.any():
        joined = lists.filter(pa.array(joined_S))
        aligned = align(joined)
        r_N, has_r_S = r_N.copy(), has_r_S.copy()
        r_N[np.repeat(joined_S, lengths_S)] = source_logprobs(joined, aligned)
        has_r_S[joined_S] = aligned.match_S
    return r_N, has_r_S


def _batches(sequences: pa.Table) -> Iterator[pa.Table]:
    """Consecutive rows with at most `TOKENS_PER_READ` tokens together, or one row with more."""
    tokens = sequences["n_total"].to_numpy().astype(np.int64)
    number = (np.cumsum(tokens) - tokens) // TOKENS_PER_READ
    starts = np.flatnonzero(np.diff(number, prepend=-1))
    for first, last in pairwise([*starts, len(number)]):
        yield sequences.slice(int(first), int(last - first))
