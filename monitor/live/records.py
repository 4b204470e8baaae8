"""Conversion of decoded rows of segments to columns of facts about records.

Dimensions: ``_S`` records.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from logprobe.collectors.kernel.pairs import PAIRS
from logprobe.collectors.kernel.statistics import COLUMNS
from logprobe.collectors.recorder.arrays import offsets_of
from logprobe.collectors.recorder.token_hash import token_hash
from logprobe.monitor import ragged
from logprobe.monitor.live.rows import blank, listed, nothing, objects, whole_numbers
from logprobe.monitor.live.sequence_rows import reduce_rollout, reduce_training
from logprobe.monitor.live.versions import Decided, Decision, Mark, Seen, Spans, Stated

Columns = dict[str, NDArray[Any]]

# How a training record came to its rollout record, and what its log-probs of the engine are. Codes of columns, and what
# the store calls them.
UNLINKED, BY_ID, BY_PARTS, BY_TOKENS, AMBIGUOUS = range(5)
HOW: Final = (None, "id", "parts", "tokens", "ambiguous")
MISSING, RECEIVED, JOINED, UNALIGNED = range(4)
SOURCES: Final = ("missing", "received", "joined", "unaligned")
ALIGNMENTS: Final = ("all", "masked", "prefix", None)  # the last as −1
HAS: Final = "has "  # begins the name of the column that says which records have statistics of a pair

LISTS: Final[Mapping[str, Sequence[str]]] = {  # of tokens, by record kind
    "training": (
        "token_ids",
        "mask",
        "rollout_logprobs",
        "trainer_logprobs",
        "current_logprobs",
        "advantages",
        "routes",
    ),
    "rollout": ("token_ids", "logprobs", "routes", "step_times"),
}
SCALARS: Final = ("entropy", "reward")  # of step records, which metrics are computed from
_WEIGHT_TIMES: Final = ("time", "requested_at", "started_at", "applied_at", "resumed_at")
_ABOUT: Final = ("machine", "clock_offset", "clock_set", "engine_started", "replica", "adapter")  # of `Decided`
_WITHIN: Final = {"start": 0, "end": (1 << 31) - 1}  # of a span that does not say where it starts or ends
UNBOUNDED: Final = 1 << 62  # tokens that have one version, whatever their number


@dataclass(frozen=True, slots=True)
class Arrived:
    """Usable rows of one record kind: `raw` as they arrived, and `stored` with ``writer``."""

    raw: pa.Table
    stored: pa.Table

    @classmethod
    def of(cls, kind: str, raw: pa.Table) -> Arrived:
        """Reduce rows with ``writer`` to their stored form."""
        return cls(raw, reduced(kind, raw.drop_columns("writer")).append_column("writer", raw["writer"]))


def reduced(kind: str, table: pa.Table) -> pa.Table:
    """Return the reduced rows of a record kind, as stored."""
    if kind == "rollout":
        return reduce_rollout(table)
    if kind not in {"training", "statistics"}:
        return table
    stored = reduce_training(table) if kind == "training" else _received(table)
    return stored.append_column("raw_kept", pa.repeat(kind == "training", table.num_rows))


def _received(table: pa.Table) -> pa.Table:
    """Add the source of log-probs. Reduced records come from calls with both log-probs, or with neither."""
    source = pc.if_else(table["backend"].is_valid(), "received", "missing")
    layers = pa.nulls(table.num_rows, pa.int32())
    return table.append_column("rollout_source", source).append_column("route_layers", layers)


def codes(column: pa.Array | pa.ChunkedArray, names: Sequence[str | None]) -> NDArray[np.int8]:
    """Return the places of strings in `HOW`, `SOURCES` or `ALIGNMENTS` [S]."""
    places = {name: place for place, name in enumerate(names)} | ({None: -1} if names[-1] is None else {})
    return np.array([places[name] for name in column.to_pylist()], np.int8)


def trained_columns(reduced: pa.Table) -> Columns:
    """Return facts about training records. None is linked to a rollout record yet."""
    size = reduced.num_rows
    received_S = np.asarray(pc.equal(reduced["rollout_source"], "received"))
    columns: Columns = {
        "segment": objects(reduced["segment_id"]),
        "row": whole_numbers(reduced["row"]),
        "writer": objects(reduced["writer"]),
        "sample": objects(reduced["sample_id"]),
        "group": objects(reduced["group_id"]),
        "time": whole_numbers(reduced["time"]),
        "rank": whole_numbers(reduced["rank"]),
        "n_total": whole_numbers(reduced["n_total"]),
        "n_expected": whole_numbers(reduced["n_expected"]),
        "token_hash": np.asarray(reduced["token_hash"].fill_null(0)),
        "layers": whole_numbers(reduced["route_layers"].fill_null(0)),
        "received": received_S,
        "reduced": np.zeros(size, np.bool_),
        "trainer_version": objects(reduced["weight_version"]),
        "part_ids": _tuples(reduced["part_ids"]),
        "stated": _stated(reduced["rollout_versions"]),
        **{name: ragged.floats(reduced[name]) for name in ("reward", "advantage_abs_sum", "entropy_sum", "entropy_n")},
        "how": np.full(size, UNLINKED, np.int8),
        "link": np.full(size, -1, np.int64),
        "source": np.where(received_S, RECEIVED, MISSING).astype(np.int8),
        "alignment": np.full(size, -1, np.int8),
        **{name: np.full(size, np.nan) for name in ("token_match", "length_match", "difference")},
        **{
            name: np.full(size, np.nan)
            for name in ("routes_match", "routes_expected", "routes_compared", "routes_equal")
        },
    }
    for pair in PAIRS:
        columns[pair], columns[HAS + pair] = statistics_of(reduced[pair])
    return columns


def statistics_of(structs: pa.ChunkedArray | pa.Array) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Return sufficient statistics as [S, columns], 0 where absent, and a mask of the records that have any [S].

    If no record has any, the statistics are `blank` and cannot be written.

    Raises `ValueError` if a record has only some of them, since a default value would look like a measurement.
    """
    array = ragged.one_array(structs)
    has = np.asarray(array.is_valid())
    if not has.any():
        return blank(len(array), len(COLUMNS)), has
    fields = array.drop_null().flatten()
    if any(column.null_count for column in fields):
        raise ValueError("a training record has incomplete sufficient statistics; send all of them or none")
    found = np.stack([ragged.floats(column) for column in fields], axis=1)
    if has.all():
        return found, has
    values = np.zeros((len(array), len(COLUMNS)))
    values[has] = found
    return values, has


def full_hash(table: pa.Table, columns: Columns) -> NDArray[np.uint64]:
    """Return fingerprints of all tokens, masked ones included [S]."""
    if np.array_equal(columns["n_total"], columns["n_expected"]):
        return columns["token_hash"]
    ids_N = ragged.flat_ids(table["token_ids"])
    return token_hash(ids_N, offsets_of(ragged.lengths(table["token_ids"])))


def _tuples(column: pa.ChunkedArray) -> NDArray[np.object_]:
    if column.null_count == len(column):
        return nothing(len(column))
    return listed(column, (None if item is None else tuple(item) for item in column.to_pylist()))


def _stated(column: pa.ChunkedArray) -> NDArray[np.object_]:
    if column.null_count == len(column):
        return nothing(len(column))
    return listed(column, (None if item is None else tuple(map(_as_stated, item)) for item in column.to_pylist()))


def _as_stated(span: Mapping[str, Any]) -> Stated:
    within = {
        name: _WITHIN[name.removeprefix("sampled_")]
        for name, place in span.items()
        if place is None and name != "version"
    }
    return Stated(**{**span, **within})


def sampled_columns(reduced: pa.Table) -> Columns:
    """Return facts about rollout records."""
    return {
        "segment": objects(reduced["segment_id"]),
        "row": whole_numbers(reduced["row"]),
        "sample": objects(reduced["sample_id"]),
        "time": whole_numbers(reduced["time"]),
        "replica": objects(reduced["replica"]),
        "n_tokens": whole_numbers(reduced["n_tokens"]),
        "token_hash": np.asarray(reduced["token_hash"].fill_null(0)),
        "logprob_sum": ragged.floats(reduced["logprob_sum"]),
        "layers": whole_numbers(reduced["route_layers"].fill_null(0)),
        "prompt_length": whole_numbers(reduced["prompt_length"]),
        "trajectory": objects(reduced["trajectory"]),
        "cached": whole_numbers(reduced["cached_prefix_tokens"]),
        "prompt": objects(pc.coalesce(reduced["group_id"], reduced["prompt_hash"])),
    }


def spans_of(table: pa.Table) -> list[Spans | None]:
    """Return the spans of rollout records, or None for records without spans."""
    return _spans(table["spans"])


def _spans(some: pa.ChunkedArray) -> list[Spans | None]:
    column = ragged.one_array(some)
    flat = column.flatten()
    begin, end = (flat.field(name).fill_null(value).to_pylist() for name, value in _WITHIN.items())
    spans = list(zip(begin, end, flat.field("version").to_pylist(), strict=True))
    lengths = ragged.lengths(some)
    ends = np.cumsum(np.maximum(lengths, 0)).tolist()
    return [
        None if length < 0 else tuple(spans[end - length : end])
        for length, end in zip(lengths.tolist(), ends, strict=True)
    ]


def one_version(spans: Spans | None) -> tuple[int, str | None]:
    """Return the number of leading tokens of one version, and that version. The number is −1 if another version may
    follow."""
    if not spans:
        return UNBOUNDED, None
    start, end, version = spans[0]
    return (end, version) if len(spans) == 1 and start <= 0 else (-1, None)


def decided_of(table: pa.Table, columns: Columns) -> dict[int, Decided]:
    """Return the engine's decisions about versions by row, for the rows that have any."""
    lengths = ragged.lengths(table["decisions"])
    rows = np.flatnonzero(lengths > 0)
    if not len(rows):
        return {}
    kept = "engine_spans" in table.column_names  # of one that was read back `spans` are as marks have them
    names = ["spans", *(["engine_spans"] if kept else []), "decisions", *_ABOUT]
    some = table.select(names).take(pa.array(rows)).combine_chunks()
    own = some["spans"]
    if kept:
        own = pc.if_else(some["engine_spans"].is_valid(), some["engine_spans"], own)
    flat = ragged.one_array(some["decisions"]).flatten()
    decisions = list(map(Decision, *(flat.field(name).to_pylist() for name in Decision._fields)))
    ends = np.cumsum(lengths[rows]).tolist()
    return {
        row: Decided(spans or (), tuple(decisions[end - length : end]), n_tokens, *about)
        for row, spans, length, end, n_tokens, *about in zip(
            rows.tolist(),
            _spans(own),
            lengths[rows].tolist(),
            ends,
            columns["n_tokens"][rows].tolist(),
            *(some[name].to_pylist() for name in _ABOUT),
            strict=True,
        )
    }


def weight_records(table: pa.Table) -> Iterator[dict[str, Any]]:
    """Return weight records with times in microseconds. Of worker readings, keep only those that marks concern."""
    wanted = pc.or_kleene(pc.not_equal(table["source"], "worker").fill_null(True), table["seen"].is_valid())
    table = table.filter(wanted)
    names = ["run", "segment_id", "row", "version", "step", "source", "replica", "machine", "moment", "adapter"]
    times = {name: table[name].cast(pa.timestamp("us", "UTC")).cast(pa.int64()).to_pylist() for name in _WEIGHT_TIMES}
    for place, row in enumerate(table.select([*names, "seen", "unless"]).to_pylist()):
        moments = {name: column[place] for name, column in times.items()}
        seen = _seen(row, touched=moments["started_at"] is not None or moments["applied_at"] is not None)
        mark = None
        if row["moment"] is not None:
            about = (row["machine"], row["replica"], row["adapter"])
            if seen is None:
                version = None if row["source"] == "worker" else row["version"]
                mark = Mark(row["moment"], moments["applied_at"], *about, version, row["step"])
            else:
                wall = None if seen.clock_offset is None else row["moment"] + seen.clock_offset
                mark = Mark(row["moment"], wall, *about, None, of=seen)
        yield {**row, **moments, "time": time_of(moments), "mark": mark, "seen": seen}


def time_of(times: Mapping[str, int | None]) -> int | None:
    """Return the time of a weight record."""
    return times["time"] if times["applied_at"] is None else times["applied_at"]


def _seen(row: Mapping[str, Any], *, touched: bool) -> Seen | None:
    seen: Mapping[str, Any] | None = row["seen"]
    if seen is None or seen["began"] is None or seen["ended"] is None:
        return None
    about = {name: row[name] for name in ("version", "machine", "replica", "adapter", "moment")}
    unless = row["unless"] or {"since": None, "until": None}
    return Seen(reading=row["source"] == "worker", touched=touched, **seen, **about, **unless)


def needed_scalars(column: pa.ChunkedArray) -> list[Mapping[str, float | None]]:
    """Return the scalars of step records that metrics need. Other scalars are not decoded."""
    array = ragged.one_array(column)
    if not pc.any(pc.is_in(array.keys, pa.array(SCALARS))).as_py():
        return [{}] * len(array)
    return [{name: value for name, value in item or () if name in SCALARS} for item in array.to_pylist()]
