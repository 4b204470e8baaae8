"""Slices of a run's sequences, such as one weight lag or one replica, with every metric of the catalog.

A slice is another group index over the stored per-sequence statistics. Its numbers come from the same formulas as a
step's and need no raw tokens. Values for a whole step, such as scalars of the trainer, are null in slices.

    from logprobe.monitor.analysis import slices

    with open_reader(home) as reader:
        table = slices.by(reader, "my-run", "weight_lag", steps=(500, 799), metrics=["backend.k3_kl"])

For several tables of the same sequences, `load` the sequences once and `split` them repeatedly.

`against_rest` locates the mismatch. It returns each slice's share of Σ k3 and flags a K3 far above that of the other
slices.

Tokens of a sequence are not independent, so the standard error of a slice's K3 is clustered by sequence, as in
`calibration_z`.

Dimensions: ``_G`` slices, ``_V`` sequences with a valid token.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from logprobe.collectors.errors import ConfigurationError
from logprobe.collectors.kernel.pairs import PAIRS
from logprobe.collectors.kernel.statistics import COLUMN_SPECS
from logprobe.monitor import queries
from logprobe.monitor.live.sequence_rows import ROUTE_COLUMNS
from logprobe.monitor.metrics.catalog import KEYS, evaluate, metric
from logprobe.monitor.metrics.lag import Versions
from logprobe.monitor.metrics.sums import Floats, Groups, Lag, PairSums, StepSums, divide
from logprobe.monitor.queries import Source

Labels = list[str | None]  # a slice's name per sequence [S]; None: unknown
Steps = tuple[int | None, int | None]

TAG: Final = "tag:"
EXACT_LAG: Final = 16  # larger lags are bucketed by powers of two
TIMES: Final = 1.5  # the K3 of all others, from which on a slice stands out
SIGMAS: Final = 4.0  # standard errors of the difference: there may be a hundred slices to look at
FEWEST: Final = 8  # sequences on either side, below which a standard error means little


@dataclass(frozen=True)
class Sequences:
    """Sequences of a run [S], and their statistics, one row per sequence and pair [R]."""

    table: pa.Table  # [S]
    rows: pa.Table  # [R]
    of_row: NDArray[np.intp]  # [R], the sequence of each row, in [0, S)
    lag: _LagRows


@dataclass(frozen=True)
class _LagRows:
    """One row per sequence and weight version that sampled a part of it [L]."""

    sequence: NDArray[np.intp]
    tokens: Floats
    of_known_version: NDArray[np.bool_]
    lags: Mapping[str, Floats]  # "versions", "steps", "seconds"


def by(
    source: Source,
    run: str,
    dimension: str,
    *,
    steps: Steps = (None, None),
    metrics: Sequence[str] | None = None,
    per_step: bool = False,
) -> pa.Table:
    """Return the metrics of the slices of a run.

    Args:
        source: a `Reader` or a `Store`.
        run: name of the run.
        dimension: ``weight_lag`` (trainer's version minus the tokens' version, averaged over the sequence's tokens,
            rounded half up, and null if the version of any token is unknown), ``weight_versions`` (number of versions
            that sampled a part of the sequence, 1 without an in-flight update, null as above), ``length`` (tokens under
            the mask, by powers of two), ``replica``, ``adapter`` (LoRA, or ``"none"`` for the weights alone), ``rank``,
            ``finish_reason``, ``cached_prefix`` (``"yes"`` if the engine took prompt tokens from its prefix cache, else
            ``"no"``), ``environment`` and ``dataset`` (tags of that name), or ``tag:<name>``.
        steps: first and last step, both included, or None for no bound.
        metrics: keys of the catalog, or None for all.
        per_step: true to slice every step separately instead of the whole window.

    Returns:
        One row per slice (and step), the smallest first and the unknown last: ``step`` (null for the whole window),
        ``slice`` (null if unknown), ``sequences``, ``tokens`` (under the mask, including broken ones), and a float64
        column per metric, null if not measurable.

    Raises:
        ConfigurationError: unknown dimension or metric.
        QueryError: the store refused (see `Reader.read`).
    """
    _dimension(dimension)
    for key in metrics or ():
        metric(key)
    return split(load(source, run, steps), dimension, metrics=metrics, per_step=per_step)


def load(source: Source, run: str, steps: Steps = (None, None)) -> Sequences:
    """Return the sequences of some steps of a run with their statistics, about 1 kB each. Raises `QueryError`, see
    `Reader.read`.
    """
    rows = queries.slice_sequences(source, run=run, first=steps[0], last=steps[1])
    _, first, of_row = np.unique(rows["sequence"].to_numpy(), return_index=True, return_inverse=True)
    table = rows.take(pa.array(first))
    versions = Versions.of(queries.diagnosis_weights(source, runs=[run], after=[None]).to_pylist())
    return Sequences(table, rows, of_row.astype(np.intp), _lag_rows(table, versions))


def split(
    sequences: Sequences, dimension: str, *, metrics: Sequence[str] | None = None, per_step: bool = False
) -> pa.Table:
    """Return the result of `by` for loaded sequences. Raises `ConfigurationError` as `by` does."""
    slices = sliced(sequences, dimension, per_step=per_step)
    return _result(slices, evaluate(slices.sums, KEYS if metrics is None else metrics))


def sliced(sequences: Sequences, dimension: str, *, per_step: bool = False) -> Sliced:
    """Return the sums of the slices of loaded sequences. Raises `ConfigurationError` for an unknown dimension."""
    labels = _dimension(dimension)(sequences)
    groups, names = _grouped(labels, sequences.table["step"].to_numpy() if per_step else None)
    return Sliced(names, _sums(sequences, groups))


def _dimension(name: str) -> Callable[[Sequences], Labels]:
    if name in DIMENSIONS:
        return DIMENSIONS[name]
    if name.startswith(TAG) and name != TAG:
        return _tag(name.removeprefix(TAG))
    names = ", ".join([*DIMENSIONS, f"{TAG}NAME"])
    raise ConfigurationError(f"no sequences to slice by {name!r}; choose one of: {names}")


# --- Which slice a sequence belongs to ---


def _by_weight_lag(sequences: Sequences) -> Labels:
    rows, size = sequences.lag, sequences.table.num_rows
    lag = rows.lags["versions"]
    # One token of unknown age is enough for the age of the sequence to be unknown: NaN passes through the sum.
    weighted = np.bincount(rows.sequence, np.where(rows.tokens > 0, lag * rows.tokens, 0.0), minlength=size)
    tokens = np.bincount(rows.sequence, rows.tokens, minlength=size)
    mean = np.divide(weighted, tokens, out=np.full(size, np.nan), where=tokens > 0)
    return [None if np.isnan(value) else _lag_label(int(np.floor(value + 0.5))) for value in mean]


def _lag_label(lag: int) -> str:
    return str(lag) if lag <= EXACT_LAG else _power_of_two(lag - 1, shift=1)


def _by_weight_versions(sequences: Sequences) -> Labels:
    rows, size = sequences.lag, sequences.table.num_rows
    sampled = rows.tokens > 0
    known_versions = np.bincount(rows.sequence[sampled & rows.of_known_version], minlength=size)
    unknown_versions = np.bincount(rows.sequence[sampled & ~rows.of_known_version], minlength=size)
    return [
        str(count) if count and not missing else None
        for count, missing in zip(known_versions, unknown_versions, strict=True)
    ]


def _by_length(sequences: Sequences) -> Labels:
    return [_power_of_two(n) for n in sequences.table["sequence_tokens"].to_pylist()]


def _power_of_two(value: int, *, shift: int = 0) -> str:
    """Return the range from 2^k to 2^(k+1) − 1 that contains `value`, with both ends shifted by `shift`."""
    if value < 1:
        return str(value + shift)
    low = 1 << (value.bit_length() - 1)
    return str(low + shift) if low == 1 else f"{low + shift}–{2 * low - 1 + shift}"


def _by_cached_prefix(sequences: Sequences) -> Labels:
    cached = sequences.table["cached_prefix_tokens"].to_pylist()
    return [None if tokens is None else "yes" if tokens > 0 else "no" for tokens in cached]


def _column(name: str) -> Callable[[Sequences], Labels]:
    return lambda sequences: list(pc.cast(sequences.table[name], pa.string()).to_pylist())


def _tag(name: str) -> Callable[[Sequences], Labels]:
    return lambda sequences: [dict(tags or ()).get(name) for tags in sequences.table["tags"].to_pylist()]


DIMENSIONS: Final[Mapping[str, Callable[[Sequences], Labels]]] = MappingProxyType(
    {
        "weight_lag": _by_weight_lag,
        "weight_versions": _by_weight_versions,
        "length": _by_length,
        "replica": _column("replica"),
        "adapter": _column("adapter"),
        "environment": _tag("environment"),
        "dataset": _tag("dataset"),
        "cached_prefix": _by_cached_prefix,
        "finish_reason": _column("finish_reason"),
        "rank": _column("rank"),
    }
)


# --- Sums of slices ---


@dataclass(frozen=True)
class Sliced:
    """Slices [G] and their sums.

    `names`: pairs of step, or None for the whole window, and slice, or None if unknown.
    """

    names: list[tuple[int | None, str | None]]
    sums: StepSums


def _grouped(labels: Labels, steps: NDArray[np.int64] | None) -> tuple[Groups, list[tuple[int | None, str | None]]]:
    of_step = [None] * len(labels) if steps is None else steps.tolist()
    keys = list(zip(of_step, labels, strict=True))
    names = sorted(set(keys), key=lambda key: (key[0] or 0, rank(key[1])))
    place = {name: index for index, name in enumerate(names)}
    return Groups(np.array([place[key] for key in keys], np.intp), len(names)), names


def rank(label: str | None) -> tuple[int, float, str]:
    """Return the sort key of a slice's name: numbers and ranges by value, words alphabetically, unknown last."""
    if label is None:
        return (2, 0.0, "")
    first = label.partition("–")[0]
    try:
        return (0, float(first), label)
    except ValueError:
        return (1, 0.0, label)


def _sums(sequences: Sequences, groups: Groups) -> StepSums:
    table, lag = sequences.table, sequences.lag
    result = StepSums(
        groups=groups,
        n_expected=_floats(table, "sequence_tokens"),
        lag=Lag(
            groups=Groups(groups.index[lag.sequence], groups.size),
            sequence=_without_gaps(lag.sequence),
            tokens=lag.tokens,
            known=lag.of_known_version,
            **lag.lags,
        ),
        reward=_floats(table, "reward"),
        advantage_abs_sum=_floats(table, "advantage_abs_sum"),
        entropy_sum=_floats(table, "entropy_sum"),
        entropy_n=_floats(table, "entropy_n"),
        token_match=_floats(table, "token_match"),
        length_match=_floats(table, "length_match"),
        routes={name: _floats(table, name) for name in ROUTE_COLUMNS},
        versions={name: _floats(table, name) for name in ("versions_compared", "versions_differing")},
    )
    for pair in PAIRS:
        chosen = pc.equal(sequences.rows["pair"], pair).fill_null(False)
        rows = sequences.rows.filter(chosen)
        if rows.num_rows:
            index = groups.index[sequences.of_row[chosen.to_numpy()]]
            columns = {column.name: rows[column.name].to_numpy() for column in COLUMN_SPECS}
            result.add_pair(pair, columns, Groups(index, groups.size))
    return result


def _without_gaps(sequence: NDArray[np.intp]) -> NDArray[np.intp]:
    """Return renumbered sequences, since sequences without a sampled token have no row."""
    return np.unique(sequence, return_inverse=True)[1].astype(np.intp)


def _floats(table: pa.Table, name: str) -> Floats:
    """Return a column as float64, with NaN for null and booleans as 0 and 1."""
    return pc.fill_null(pc.cast(table[name], pa.float64()), np.nan).to_numpy()  # type: ignore[no-any-return]


def _lag_rows(table: pa.Table, versions: Versions) -> _LagRows:
    lists = table["versions"].combine_chunks()
    flat = lists.flatten()
    sequence = pc.list_parent_indices(lists).to_numpy().astype(np.intp)
    version = pa.chunked_array([flat.field("version")], pa.string())
    return _LagRows(
        sequence=sequence,
        tokens=flat.field("tokens").to_numpy(zero_copy_only=False).astype(np.float64),
        of_known_version=np.asarray(version.is_valid()),
        lags=versions.lags(table["trainer_version"].take(pa.array(sequence)), version),
    )


def _result(slices: Sliced, values: Mapping[str, Floats]) -> pa.Table:
    sums = slices.sums
    columns: dict[str, pa.Array] = {
        "step": pa.array([step for step, _ in slices.names], pa.int64()),
        "slice": pa.array([name for _, name in slices.names], pa.string()),
        "sequences": pa.array(sums.groups.count().astype(np.int64)),
        "tokens": pa.array(sums.expected.astype(np.int64)),
    }
    columns |= {key: pa.array(value, pa.float64(), mask=np.isnan(value)) for key, value in values.items()}
    return pa.table(columns)


def against_rest(sequences: Sequences, dimension: str, pair: str) -> pa.Table:
    """Compare each slice with all other sequences.

    Returns:
        One row per slice, in the order of `logprobe.monitor.analysis.slices.split`: ``slice`` (null if unknown),
            ``tokens`` (valid ones), ``k3_share`` (share of Σ k3 over all slices), ``times_rest`` (its K3 divided by
            that of the others), ``z`` (their difference in standard errors), and ``worse`` (true if the slice is an
            outlier). Values are null if not measurable.

    Raises:
        ConfigurationError: there is no such dimension.
    """
    slices = sliced(sequences, dimension)
    own = _moments(slices.sums.pair(pair))
    rest = _Moments(*(total.sum() - total for total in vars(own).values()))
    times = divide(own.mean, rest.mean)
    z = divide(own.mean - rest.mean, np.hypot(own.error, rest.error))
    return pa.table(
        {
            "slice": pa.array([name for _, name in slices.names], pa.string()),
            "tokens": pa.array(own.n.astype(np.int64)),
            "k3_share": _nullable(divide(own.k3, own.k3 + rest.k3)),
            "times_rest": _nullable(times),
            "z": _nullable(z),
            "worse": pa.array((times >= TIMES) & (z >= SIGMAS), mask=np.isnan(z)),
        }
    )


@dataclass(frozen=True)
class _Moments:
    """Sums over sequences [G]: number, valid tokens n, Σ k3, and the products of n and Σ k3."""

    count: Floats
    n: Floats
    k3: Floats
    nn: Floats
    kn: Floats
    kk: Floats

    @property
    def mean(self) -> Floats:
        """Return K3, the token mean."""
        return divide(self.k3, self.n)

    @property
    def error(self) -> Floats:
        """Return the standard error of the mean, clustered by sequence, or NaN for fewer than `FEWEST` sequences."""
        residual = self.kk - 2 * self.mean * self.kn + self.mean**2 * self.nn
        variance = np.maximum(residual, 0.0) * divide(self.count, self.count - 1)
        return np.where(self.count >= FEWEST, divide(np.sqrt(variance), self.n), np.nan)


def _moments(sums: PairSums) -> _Moments:
    n_V, k3_V, total = sums.lengths, sums.column("sum_k3"), sums.sequences.sum
    return _Moments(
        sums.sequences.count(), total(n_V), total(k3_V), total(n_V * n_V), total(k3_V * n_V), total(k3_V * k3_V)
    )


def _nullable(values: Floats) -> pa.Array:
    return pa.array(values, pa.float64(), mask=np.isnan(values))
