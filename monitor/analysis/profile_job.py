"""Profile job: computes token-level profiles from raw tokens, for steps recomputed since their last profile.

The job is separate from ingest for two reasons. The sums cost as much as the statistics, and r of a joined sequence
arrives after its training record. A step's rows are replaced in one transaction, together with the step's revision.
Data that arrives during profiling creates a newer revision, and the step is profiled again. No token counts twice.

The job needs raw tokens. A step without raw tokens keeps its profile. A profile is never replaced by one from fewer
tokens.
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

STEPS_PER_BATCH: Final = 256  # of one transaction
TOKENS_PER_BATCH: Final = 8_000_000  # a second or two of work, after which the service may stop
TOKENS_PER_READ: Final = 2_000_000
_REST_SECONDS: Final = 15.0  # of a run whose raw tokens cannot be read
_OF_TRAINER: Final = ("trainer_logprobs", "current_logprobs", "reference_logprobs", "teacher_logprobs")


@dataclass(frozen=True, slots=True)
class ProfileReport:
    """Result of one run of the job, in tokens under the mask."""

    steps: int
    tokens: int
    seconds: float
    problem: str | None = None  # which runs cannot be profiled now, and why; they are tried again


class _Resting:
    """Paused runs with unreadable raw tokens. The pause prevents a delay of other runs."""

    def __init__(self, time: Time) -> None:
        self._time = time
        self._runs: dict[str, tuple[float, str]] = {}

    def now(self) -> list[str]:
        """Return the paused runs. A run whose pause ends during a piece of work stays unprocessed."""
        moment = self._time.monotonic()
        self._runs = {run: rest for run, rest in self._runs.items() if rest[0] > moment}
        return list(self._runs)

    def add(self, run: str, error: Exception) -> None:
        """Pause a run before the next attempt."""
        self._runs[run] = (self._time.monotonic() + _REST_SECONDS, f"{run}: raw tokens cannot be read ({error})")

    @property
    def problem(self) -> str | None:
        """Return the errors of the paused runs, or None without any."""
        return "; ".join(words for _, words in self._runs.values()) or None


class ProfileJob:
    """Profiler of the steps of one store. Only one thread at a time may use it."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._resting = _Resting(store.time)

    def run_once(self) -> ProfileReport:
        """Profile some of the due steps, if any.

        Raises:
            StoreError: the store or the disk refused. The steps stay due.
        """
        started = time.perf_counter()
        resting = self._resting.now()
        due = queries.profile_due(self._store.kept, steps=STEPS_PER_BATCH, tokens=TOKENS_PER_BATCH, resting=resting)
        tokens = self._of_each_run(due) if due.num_rows else 0
        return ProfileReport(due.num_rows, tokens, time.perf_counter() - started, self._resting.problem)

    def _of_each_run(self, due: pa.Table) -> int:
        """Profile steps of several runs together. If the tokens are unreadable, profile each run separately, so that a
        faulty run delays no other.
        """
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
        """Add a batch to `sums` of `count` steps. Return its tokens under the mask by step."""
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
        """Return token lists of training records by ``number``, with the engine's lists if r comes from the engine."""
        numbers = pa.array(np.arange(batch.num_rows))
        keys = batch.select(["segment_id", "row"]).append_column("number", numbers)
        of_rollouts = batch.select(["rollout_segment", "rollout_row"]).rename_columns(["segment_id", "row"])
        of_rollouts = of_rollouts.append_column("number", numbers).filter(of_rollouts["segment_id"].is_valid())
        names = ("token_ids", "mask", "rollout_logprobs", *_OF_TRAINER)
        trained = self._store.lists("training", names, keys)
        if not of_rollouts.num_rows:
            nothing = {"rollout_token_ids": pa.list_(pa.int32()), "logprobs": pa.list_(pa.float32())}
            for name, kind in nothing.items():
                trained = trained.append_column(name, pa.nulls(trained.num_rows, kind))
            return trained
        sampled = self._store.lists("rollout", ("token_ids", "logprobs"), of_rollouts)
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
        again = due.filter(pa.array(replaced & (due["profiled"].to_numpy() > 0)))
        with self._store.transaction(records=False) as cursor:
            if again.num_rows:  # as of hardly any step
                self._store.execute(cursor, "forget_steps", again, table="profiles")
            self._store.execute(cursor, "append", rows, table="profiles")
            self._store.execute(cursor, "profile_done", state)


def _stored(pair: str, rows: pa.Table, due: pa.Table, replaced: NDArray[np.bool_]) -> pa.Table:
    """Return a pair's stored profiles for the steps with new profiles."""
    rows = rows.filter(pa.array(replaced[rows["place"].to_numpy()]))
    place = rows["place"]
    return (
        rows.append_column("run", due["run"].take(place))
        .append_column("pair", pa.repeat(pair, rows.num_rows))
        .append_column("step", due["step"].take(place))
        .drop_columns("place")
    )


def _beside(trained: pa.Table, sampled: pa.Table, parts: pa.Table) -> pa.Table:
    """Return training records by number, with ``rollout_token_ids`` and ``logprobs`` of their rollout records."""
    made = trained.filter(pc.is_in(trained["number"], parts["number"]))
    parts = parts.filter(pc.is_in(parts["number"], made["number"])).sort_by("number")
    places = {number: place for place, number in enumerate(sampled["number"].to_pylist() + parts["number"].to_pylist())}
    taken = pa.array([places.get(number) for number in trained["number"].to_pylist()], pa.int64())
    ids = pa.chunked_array([*sampled["token_ids"].chunks, _masked(made)], pa.list_(pa.int32()))
    values = pa.chunked_array([*sampled["logprobs"].chunks, *parts["logprobs"].chunks], pa.list_(pa.float32()))
    return trained.append_column("rollout_token_ids", ids.take(taken)).append_column("logprobs", values.take(taken))


def _masked(made: pa.Table) -> pa.Array:
    """Return the ids of the tokens under the mask, at whose positions the log-probs of several requests are placed."""
    lengths_S = ragged.lengths(made["token_ids"])
    mask_N = ragged.flat_mask(made["mask"], lengths_S)
    ids_N = ragged.flat_ids(made["token_ids"])[mask_N]
    offsets = offsets_of(segment_sums(mask_N, offsets_of(lengths_S), np.int64))
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), ids_N)


def _side(column: pa.ChunkedArray, lengths_S: NDArray[np.int64]) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
    """Return the log-probs [N] and a flag per sequence with log-probs [S]."""
    values = ragged.flat_floats(column, lengths_S)
    present = np.asarray(column.is_valid())
    return (np.full(int(lengths_S.sum()), np.nan, np.float32) if values is None else values), present


def _rollout_side(lists: pa.Table, lengths_S: NDArray[np.int64]) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
    """Return the engine's side, as received by the trainer or from the rollout record with the join's alignment."""
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
    """Yield consecutive rows with at most `TOKENS_PER_READ` tokens in total, or a single longer row."""
    tokens = sequences["n_total"].to_numpy().astype(np.int64)
    number = (np.cumsum(tokens) - tokens) // TOKENS_PER_READ
    starts = np.flatnonzero(np.diff(number, prepend=-1))
    for first, last in pairwise([*starts, len(number)]):
        yield sequences.slice(int(first), int(last - first))
