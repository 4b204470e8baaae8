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
from logprobe.monitor.layouts import flattened, mask_of, per_token, require_lengths

_FLAGS: Final = {"true": True, "false": False}
Floats: TypeAlias = NDArray[np.floating[Any]]
SAFETY_BOUND: Final = 20.0  # most peers clamp a log-ratio to ±20 before they exponentiate it


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
    sides = {
        "rollout_logprobs": rollout,
        "trainer_logprobs": trainer,
        "current_logprobs": current,
        "reference_logprobs": reference,
    }
    flat = {name: flattened(name, value) for name, value in sides.items() if value is not None}
    for name in ("rollout_logprobs", "trainer_logprobs"):
        if name not in flat or (flat[name].lengths < 0).any():
            raise InputError(f"{name}: a peer's view needs it, for every token of every sequence")
    lengths = flat["rollout_logprobs"].lengths
    for name, values in flat.items():
        require_lengths(name, values, lengths)
    flat["mask"] = mask_of(mask, lengths)
    if advantages is not None:
        flat["advantages"] = per_token("advantages", advantages, lengths)
    time = max(int(arrays.is_ragged(rollout)), *lengths.tolist(), 0)
    padded = {name: values.padded(time, dtype) for name, values in flat.items()}
    return Tokens(
        padded["rollout_logprobs"],
        padded["trainer_logprobs"],
        padded["mask"],
        padded.get("current_logprobs"),
        padded.get("advantages"),
        padded.get("reference_logprobs"),
    )
