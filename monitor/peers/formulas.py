"""Sums and functions in the expressions of `table.yaml`, and their evaluation."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Final, NoReturn, TypeAlias

import numpy as np
from numpy.typing import NDArray

from logprobe.collectors.errors import ConfigurationError
from logprobe.monitor.settings.located import instead
from logprobe.monitor.settings.yaml_text import packaged

Array: TypeAlias = NDArray[Any]

NAN: Final = float("nan")
_SAFE: Final = 20.0  # most clamp a log-ratio to ±20 before they exponentiate it
_K3_LIMIT: Final = 10.0  # where K3 is clamped at all


@dataclass(frozen=True)
class Sums:
    """Sums and means by a framework's definition, of each sequence [batch, 1] or of all tokens."""

    mask: Array
    selects: bool  # of a selection; else of a product with the mask, which lets a NaN through (0 · NaN is NaN)
    epsilon: float  # added to denominators; with 0 they are at least 1

    def sums(self, values: Array, mask: Array | None = None) -> Array:
        """Return the sum of each sequence."""
        return np.asarray(self._masked(values, mask).sum(axis=-1, keepdims=True))

    def means(self, values: Array, mask: Array | None = None) -> Array:
        """Return the mean of each sequence, 0 for an empty one."""
        kept = self.mask if mask is None else mask
        return np.asarray(self.sums(values, kept) / self._count(kept.sum(axis=-1, keepdims=True)))

    def mean(self, values: Array, mask: Array | None = None) -> float:
        """Return the mean over all tokens, 0 without any."""
        kept = self.mask if mask is None else mask
        return float(self._masked(values, kept).sum() / self._count(kept.sum()))

    def highest(self, values: Array) -> Array:
        """Return the maximum of each sequence, 0 for an empty one."""
        valid = self.mask > 0
        maxima = np.where(valid, values, -np.inf).max(axis=-1, keepdims=True)
        return np.where(valid.any(axis=-1, keepdims=True), maxima, 0.0)

    def _masked(self, values: Array, mask: Array | None) -> Array:
        kept = self.mask if mask is None else mask
        return np.asarray((np.where(kept > 0, values, 0.0) if self.selects else values) * kept)

    def _count(self, tokens: Any) -> Any:
        return tokens + self.epsilon if self.epsilon else np.maximum(tokens, 1.0)


def _clamp(values: Array) -> Array:
    return np.clip(values, -_SAFE, _SAFE)


def _k3(log_ratio: Array) -> Array:
    """Return exp(d) − d − 1 in the frameworks' form, unclamped and with cancellation for small d."""
    return np.exp(log_ratio) - log_ratio - 1.0


def _clipped(ratio: Array, advantages: Array, low: float, high: float) -> Array:
    """Return a mask of the tokens where the PPO minimum takes its clipped branch."""
    return np.asarray(-advantages * np.clip(ratio, 1 - low, 1 + high) > -advantages * ratio)


def _lower_median(values: Array) -> float:
    """Return the lower of two middle values, as `torch.median` does, or NaN if any value is NaN."""
    if not values.size or np.isnan(values).any():
        return NAN
    return float(np.sort(values)[(values.size - 1) // 2])


def _limits(option: str, text: str) -> tuple[float | None, float]:
    """Return verl's bounds ``upper`` or ``lower_upper``."""
    lower, separator, upper = text.rpartition("_")
    return _positive(option, lower) if separator else None, _positive(option, upper)


def _positive(option: str, text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = NAN
    if not number > 0:
        raise ConfigurationError(f"verl: {option}: {text!r} is not a number above 0; pass one")
    return number


_CRITERIA: Final = (
    *(f"{level}_{estimator}" for level in ("token", "seq_sum", "seq_mean") for estimator in ("k1", "k2", "k3")),
    *("seq_max_k2", "seq_max_k3", "binary_kl"),
)


def _rejection(criteria: str, threshold: Any) -> dict[str, tuple[float | None, float]]:
    """Return verl's bounds of each criterion on its divergence.

    The bounds of k1 are ratios, whose logarithms are compared with −d.
    """
    names = list(dict.fromkeys(part.strip() for part in criteria.split(",") if part.strip()))
    for name in names:
        if name not in _CRITERIA:
            raise ConfigurationError(f"verl: rollout_rs has no criterion {name!r}; {instead(name, _CRITERIA)}")
    texts = [part.strip() for part in str(threshold).split(",") if part.strip()]
    if threshold is None or len(texts) not in {1, len(names)}:
        raise ConfigurationError(
            f"verl: rollout_rs_threshold={threshold!r}; give one bound, or one for each of {', '.join(names)}"
        )
    bounds: dict[str, tuple[float | None, float]] = {}
    for at, name in enumerate(names):
        text = texts[at % len(texts)]
        if name.endswith("k1"):
            low, high = _limits("rollout_rs_threshold", text)
            bounds[name] = math.log(1.0 / high if low is None else low), math.log(high)
        else:
            bounds[name] = None, _positive("rollout_rs_threshold", text)
    return bounds


_FUNCTIONS: Final[dict[str, Any]] = {
    **{name: getattr(np, name) for name in ("abs", "broadcast_to", "clip", "divide", "exp", "full_like", "log")},
    **{name: getattr(np, name) for name in ("maximum", "minimum", "nan_to_num", "sqrt", "square", "where")},
    "inf": math.inf,
    "nan": NAN,
    "ln": math.log,  # a plain number: compared with float32 it stays one
    "clamp": _clamp,
    "safe": lambda log_ratio: np.exp(_clamp(log_ratio)),
    "k2": lambda log_ratio: np.square(log_ratio) / 2.0,
    "k3": _k3,
    "limited_k3": lambda log_ratio: np.clip(_k3(_clamp(log_ratio)), -_K3_LIMIT, _K3_LIMIT),
    "inside": lambda values, lower, upper: (values >= lower) & (values <= upper),
    "clipped": _clipped,
    "deviation": lambda values, single=NAN: values.std(ddof=1) if values.size > 1 else single,
    "mean_of": lambda values, empty=NAN: values.mean() if values.size else empty,
    "minimum_of": lambda values, empty=NAN: values.min() if values.size else empty,
    "maximum_of": lambda values, empty=NAN: values.max() if values.size else empty,
    "lower_median": _lower_median,
    "limits": _limits,
    "rejection": _rejection,
}


@dataclass(frozen=True)
class Option:
    """Setting of a framework. Without `choices`, the value is a number, or a flag if the default is a flag."""

    default: Any
    choices: tuple[Any, ...] = ()
    positive: bool = False  # a number above 0, or None where the framework allows it
    text: bool = False  # the framework reads it as text itself, such as ``"0.5_2.0"``

    @classmethod
    def of(cls, stated: Any) -> Option:
        """Return the option declared in the table."""
        if isinstance(stated, list):
            return cls(stated[0], tuple(stated))
        if isinstance(stated, dict):
            ((kind, default),) = stated.items()
            return cls(default, positive=kind == "positive", text=kind == "text")
        return cls(stated)


@dataclass(frozen=True)
class Reading:
    """Metrics that a framework logs for a batch, and its treatment of the loss."""

    metrics: Mapping[str, float]
    weights: Array | None  # factors on the loss before it masks tokens; None: it applies none
    mask: Array  # its loss mask after rejection


@dataclass(frozen=True)
class Peer:
    """One framework of the table."""

    name: str
    prefixes: tuple[str, ...]
    headline: tuple[str, ...]
    options: Mapping[str, Option]
    definitions: Mapping[str, tuple[tuple[str, ...], str]]  # parameters and expression by name
    metrics: Mapping[str, Any]
    weights: str
    keeps: str
    selects: bool
    epsilon: float

    def read(self, batch: Mapping[str, Array | None], settings: Mapping[str, Any]) -> Reading:
        """Evaluate the expressions. `batch`: arrays by the table's names."""
        rollout, trainer, mask = (np.asarray(batch[name]) for name in ("r", "t", "mask"))
        taken = Sums(mask, self.selects, self.epsilon)
        scope = _Scope(
            {
                **settings,
                **batch,
                **{name: getattr(taken, name) for name in ("sums", "means", "mean", "highest")},
                "valid": mask > 0,
                "filled": (mask > 0).any(axis=-1, keepdims=True),
                "d": trainer - rollout,
                "newest": trainer if batch["c"] is None else batch["c"],
                "refuse": self._refuse,
            },
            self.definitions,
        )
        return Reading(dict(scope.rows(self.metrics)), scope.value(self.weights), scope.value(self.keeps))

    def _refuse(self, words: str) -> NoReturn:
        raise ConfigurationError(f"{self.name}: {words}")


class _Scope(dict[str, Any]):
    """Names for expressions. A defined name is evaluated at its first use."""

    def __init__(self, given: Mapping[str, Any], definitions: Mapping[str, tuple[tuple[str, ...], str]]) -> None:
        super().__init__(given, every=self._every)
        self._given = given
        self._definitions = definitions

    def __missing__(self, name: str) -> Any:
        parameters, expression = self._definitions[name]  # else it is a function or a built-in

        def call(*arguments: Any) -> Any:
            return _Scope({**self, **dict(zip(parameters, arguments, strict=True))}, self._definitions).value(
                expression
            )

        self[name] = call if parameters else self.value(expression)
        return self[name]

    def value(self, expression: str) -> Any:
        """Evaluate an expression of the table."""
        return eval(_compiled(expression), _FUNCTIONS, self)  # noqa: S307 - shipped with the package, and checked there

    def rows(self, rows: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
        """Yield key and value of each row that applies."""
        for key, row in rows.items():
            word, _, rest = key.partition(" ")
            if word == "if":
                if self.value(rest):
                    yield from self.rows(row)
            elif word == "for":
                name, _, names = rest.partition(" in ")
                for value in self.value(names):
                    yield from self._with(name, value).rows(row)
            else:
                yield key.format_map(self), float(self.value(row))

    def _with(self, name: str, value: Any) -> _Scope:
        return _Scope({**self._given, name: value}, self._definitions)

    def _every(self, expression: str, name: str, values: Sequence[Any]) -> Array:
        """Return a mask where an expression holds for each value of a name."""
        holds = np.ones(self["mask"].shape, np.bool_)
        for value in values:
            holds &= self._with(name, value).value(expression)
        return holds


@cache
def _compiled(expression: str) -> Any:
    return compile(expression, "table.yaml", "eval")


def _definition(name: str, expression: str) -> tuple[str, tuple[tuple[str, ...], str]]:
    name, _, parameters = name.rstrip(")").partition("(")
    return name, (tuple(parameters.split(", ")) if parameters else (), expression)


def _peer(name: str, row: Mapping[str, Any]) -> Peer:
    return Peer(
        name,
        prefixes=tuple(row["prefixes"]),
        headline=tuple(row["headline"]),
        options={option: Option.of(stated) for option, stated in row["options"].items()},
        definitions=dict(_definition(*item) for item in row["define"].items()),
        metrics=row["metrics"],
        weights=row.get("weights", "None"),
        keeps=row.get("keeps", "mask"),
        selects=row.get("selects", False),
        epsilon=row.get("epsilon", 0.0),
    )


def _table() -> dict[str, Peer]:
    return {name: _peer(name, row) for name, row in packaged("logprobe.monitor.peers", "table.yaml").items()}


PEERS: Final[Mapping[str, Peer]] = _table()
