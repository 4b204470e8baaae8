"""What describes a peer framework, the batch that it is shown, and means as torch code takes them, NaN and empty sets
included.

Two ways of leaving out masked tokens are in use, and they differ where it matters: a product with the mask lets a NaN
under the mask through (0 · NaN is NaN), a selection does not. Each peer says which one it uses.

Dimensions: ``_BT`` padded batch × time, ``_B`` one value per sequence, ``_N`` a flat selection of tokens.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from numbers import Real
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from logprobe.collectors.errors import ConfigurationError, InputError
from logprobe.collectors.recorder import arrays

_FLAGS: Final = {"true": True, "false": False}
Floats: TypeAlias = NDArray[np.floating[Any]]
SAFETY_BOUND: Final = 20.0  # most peers clamp a log-ratio to ±20 before they exponentiate it
_PADDED: Final = 2  # dimensions of a padded batch


@dataclass(frozen=True)
class Reading:
    """What a framework makes of one batch."""

    metrics: Mapping[str, float]  # under the keys it logs
    weights_BT: Floats | None = None  # factors on the loss before it masks tokens; None: it applies none
    mask_BT: Floats | None = None  # its loss mask after rejection; None: unchanged


def option(default: Any, words: str, *choices: Any) -> Any:
    """A field of a peer's options. Without `choices` a number, or a flag where the default is one."""
    return field(default=default, metadata={"words": words, "choices": choices})


def bound(default: Any, words: str) -> Any:
    """A field of a peer's options: a number above 0, or None where the default says so or the framework allows it."""
    return field(default=default, metadata={"words": words, "choices": (), "positive": True})


def specification(default: Any, words: str) -> Any:
    """A field of a peer's options that the framework reads as text itself, such as ``"0.5_2.0"``."""
    return field(default=default, metadata={"words": words, "choices": (), "text": True})


@dataclass(frozen=True)
class CommonOptions:
    """Options of every peer."""

    dtype: str = option(
        "float64",
        "arithmetic; float32 shows the rounding that the framework's own numbers carry",
        "float64",
        "float32",
    )


@dataclass(frozen=True)
class Peer:
    """One framework."""

    name: str
    options: type[CommonOptions]
    read: Callable[[Tokens, Any], Reading]
    prefixes: tuple[str, ...]  # its logger puts these before the names in its code
    headline: tuple[str, ...]  # what a table shows when nobody chose

    def parse(self, given: Mapping[str, Any]) -> CommonOptions:
        """Options by name. Raises `ConfigurationError` for an unknown name or a value that does not fit."""
        options = {entry.name: entry for entry in fields(self.options)}
        for name, value in given.items():
            if name not in options:
                raise ConfigurationError(f"{self.name} has no option {name!r}{suggestion(name, options)}")
            _check(self.name, name, value, options[name].default, options[name].metadata)
        return self.options(**given)

    def parse_text(self, given: Mapping[str, str]) -> dict[str, object]:
        """Options as a command line has them; values become flags, numbers and None where they are meant to be."""
        texts = {entry.name for entry in fields(self.options) if entry.metadata.get("text")}
        return {name: value if name in texts else _from_text(value) for name, value in given.items()}


def suggestion(name: str, choices: Iterable[str]) -> str:
    """End of a message about an unknown name: the one that was meant, else what there is."""
    names = list(choices)
    close = difflib.get_close_matches(name, names, n=1)
    return f"; did you mean {close[0]!r}?" if close else f"; known are {', '.join(names)}"


def _check(peer: str, name: str, value: Any, default: Any, about: Mapping[str, Any]) -> None:
    wanted = _wanted(value, default, about)
    if wanted:
        raise ConfigurationError(f"{peer}: {name}={value!r}; it is {wanted}")


def _wanted(value: Any, default: Any, about: Mapping[str, Any]) -> str:
    """What the value should have been; empty where it is that."""
    choices = about["choices"]
    if choices:
        return "" if value in choices else f"one of {', '.join(map(repr, choices))}"
    if isinstance(default, bool):
        return "" if isinstance(value, bool) else "True or False"
    if about.get("text") or value is None:
        return ""
    if isinstance(value, bool) or not isinstance(value, Real):  # numpy's numbers are of this kind, too
        return "a number or None"
    return "a number above 0" if about.get("positive") and not float(value) > 0 else ""


def _from_text(text: str) -> Any:
    if text.lower() in _FLAGS:
        return _FLAGS[text.lower()]
    if text.lower() in {"none", "null"}:
        return None
    try:
        return float(text)
    except ValueError:
        return text


def clamped_exp(log_ratio: Floats) -> Floats:
    """ρ: exp with its argument clamped to ±20; NaN stays NaN."""
    return np.exp(np.clip(log_ratio, -SAFETY_BOUND, SAFETY_BOUND))


def naive_k3(log_ratio: Floats) -> Floats:
    """K3 as everybody writes it, exp(d) − d − 1: unclamped, and cancelling when d is small."""
    return np.exp(log_ratio) - log_ratio - 1.0


def product_sum(values_BT: Floats, mask_BT: Floats) -> Floats:
    """Σ values·mask of each sequence [B]; NaN under the mask makes it NaN."""
    return np.asarray((values_BT * mask_BT).sum(axis=-1))


def product_means(values_BT: Floats, mask_BT: Floats) -> Floats:
    """Mean of each sequence [B], 0 for an empty one."""
    return np.asarray(product_sum(values_BT, mask_BT) / np.maximum(mask_BT.sum(axis=-1), 1.0))


def product_mean(values_BT: Floats, mask_BT: Floats) -> float:
    """Mean over all tokens, 0 without any."""
    return float((values_BT * mask_BT).sum() / np.maximum(mask_BT.sum(), 1.0))


def deviation(values_N: Floats) -> float:
    """Standard deviation with n − 1 in the denominator; NaN for fewer than two values."""
    return float(values_N.std(ddof=1)) if values_N.size > 1 else float("nan")


def lower_median(values_N: Floats) -> float:
    """The lower of the two middle values, as `torch.median` takes it; NaN if any value is."""
    if not values_N.size or np.isnan(values_N).any():
        return float("nan")
    return float(np.sort(values_N)[(values_N.size - 1) // 2])


def pearson(first_N: Floats, second_N: Floats) -> float:
    """Correlation; NaN for fewer than two values or a constant side."""
    if first_N.size <= 1:
        return float("nan")
    first, second = first_N - first_N.mean(), second_N - second_N.mean()
    scale = np.sqrt((first * first).sum()) * np.sqrt((second * second).sum())
    return float(np.clip((first * second).sum() / scale, -1.0, 1.0))


def clipped_branch(ratio_BT: Floats, advantages_BT: Floats, low: float, high: float) -> NDArray[np.bool_]:
    """Where the PPO minimum takes its clipped branch: −A·clip(ρ) > −A·ρ."""
    return np.asarray(-advantages_BT * np.clip(ratio_BT, 1 - low, 1 + high) > -advantages_BT * ratio_BT)


def perplexities(trainer_B: Floats, rollout_B: Floats) -> dict[str, float]:
    """Of mean log-probs per sequence; an empty sequence comes with 0 and so counts as perplexity 1."""
    difference_B = rollout_B - trainer_B
    return {
        "training_ppl": float(np.exp(-trainer_B).mean()),
        "training_log_ppl": float((-trainer_B).mean()),
        "rollout_ppl": float(np.exp(-rollout_B).mean()),
        "rollout_log_ppl": float((-rollout_B).mean()),
        "log_ppl_diff": float(difference_B.mean()),
        "log_ppl_abs_diff": float(np.abs(difference_B).mean()),
        "log_ppl_diff_max": float(difference_B.max()),
        "log_ppl_diff_min": float(difference_B.min()),
        "ppl_ratio": float(np.exp(difference_B).mean()),
    }


@dataclass(frozen=True)
class Tokens:
    """One batch as a framework's loss function holds it: all arrays [batch, time], of one float type."""

    rollout_BT: Floats
    trainer_BT: Floats
    mask_BT: Floats  # 1.0 or 0.0
    current_BT: Floats | None
    advantages_BT: Floats | None
    reference_BT: Floats | None = None

    @property
    def valid_BT(self) -> NDArray[np.bool_]:
        """Where the mask is set."""
        return self.mask_BT > 0

    @property
    def log_ratio_BT(self) -> Floats:
        """The log-ratio d of the pair `backend`: t − r."""
        return self.trainer_BT - self.rollout_BT

    @property
    def newest_BT(self) -> Floats:
        """Log-probs of the policy being trained: c where it is given, else t."""
        return self.trainer_BT if self.current_BT is None else self.current_BT


def tokens_of(
    *,
    rollout: Any,
    trainer: Any,
    mask: Any,
    current: Any,
    advantages: Any,
    reference: Any = None,
    dtype: np.dtype[np.floating[Any]],
) -> Tokens:
    """Arrays of any of the accepted layouts as `Tokens`.

    Raises:
        InputError: the arrays do not fit together, or are not numbers.
    """
    rollout_BT = _padded("rollout_logprobs", rollout, dtype)
    shape = rollout_BT.shape
    mask_BT = _mask(mask, rollout, shape, dtype)
    given = {
        "trainer_logprobs": _padded("trainer_logprobs", trainer, dtype),
        "mask": mask_BT,
        "current_logprobs": None if current is None else _padded("current_logprobs", current, dtype),
        "reference_logprobs": None if reference is None else _padded("reference_logprobs", reference, dtype),
        "advantages": None if advantages is None else _advantages(advantages, shape, dtype),
    }
    _require_shape(given, shape)
    trainer_BT, current_BT, advantages_BT, reference_BT = (
        given[name] for name in ("trainer_logprobs", "current_logprobs", "advantages", "reference_logprobs")
    )
    return Tokens(rollout_BT, trainer_BT, mask_BT, current_BT, advantages_BT, reference_BT)  # type: ignore[arg-type]


def _require_shape(given: Mapping[str, Floats | None], shape: tuple[int, ...]) -> None:
    for name, value in given.items():
        if value is not None and value.shape != shape:
            raise InputError(
                f"{name}: [batch, time] is {list(value.shape)} where rollout_logprobs is {list(shape)}; "
                "a peer's view needs every token on both sides"
            )


def _mask(mask: Any, rollout: Any, shape: tuple[int, ...], dtype: np.dtype[np.floating[Any]]) -> Floats:
    """1.0 where the policy sampled the token; without a mask every token that `rollout` really has."""
    if mask is not None:
        given = _padded("mask", mask, dtype)
        if np.isnan(given).any():
            raise InputError("mask: NaN does not say whether a token counts")
        return np.asarray(given != 0, dtype)
    lengths = [len(row) for row in rollout] if arrays.is_ragged(rollout) else [shape[1]] * shape[0]
    return np.asarray(np.arange(shape[1]) < np.array(lengths, np.int64).reshape(-1, 1), dtype)


def _advantages(value: Any, shape: tuple[int, ...], dtype: np.dtype[np.floating[Any]]) -> Floats:
    """Per token; one per sequence is repeated over its tokens."""
    if not arrays.is_ragged(value):
        array = np.asarray(arrays.numbers_on_host("advantages", value), dtype)
        if array.ndim == 1 and len(array) == shape[0]:
            return np.repeat(array[:, None], shape[1], axis=1)
    return _padded("advantages", value, dtype)


def _padded(name: str, value: Any, dtype: np.dtype[np.floating[Any]]) -> Floats:
    """[batch, time] of a padded array, a list of sequences (padded with 0 at the end) or one sequence."""
    if value is None:
        raise InputError(f"{name}: a peer's view needs it")
    if arrays.is_ragged(value):
        rows = [np.asarray(arrays.numbers_on_host(name, row), dtype) for row in value]
        if any(row.ndim != 1 for row in rows):
            raise InputError(f"{name}: the items of a list must be 1-D")
        array = np.zeros((len(rows), max(1, *map(len, rows))), dtype)
        for row, items in zip(array, rows, strict=True):
            row[: len(items)] = items
        return array
    array = np.atleast_2d(np.asarray(arrays.numbers_on_host(name, value), dtype))
    if array.ndim != _PADDED:
        raise InputError(f"{name}: must be [batch, time] or a list of 1-D arrays, not shape {list(array.shape)}")
    return array
