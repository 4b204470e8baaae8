"""Arithmetic of corrections in the array API: one code path for numpy arrays and torch tensors.

Every function takes the array namespace `xp` first. Values are 0 wherever `valid` is False. Sums therefore need no
second mask, and no value under mask = 0 can reach a result or a gradient.

Dimensions: ``_BT`` padded batch × time, ``_B1`` one value per sequence, kept broadcastable.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import array_api_compat

from logprobe.collectors.kernel.arithmetic import CLAMP

Array: TypeAlias = Any  # a numpy array or a torch tensor
Namespace: TypeAlias = Any  # of the array API


def detached(values: Array) -> Array:
    """Return `values` without a gradient. A tensor is detached, a numpy array is returned unchanged."""
    detach = getattr(values, "detach", None)
    return values if detach is None else detach()


def constant(xp: Namespace, value: float, like: Array) -> Array:
    """Return a 0-d array of the type and on the device of `like`.

    The value is filled on the device, since a copy from the host would wait for the device.
    """
    return xp.full((), value, dtype=like.dtype, device=array_api_compat.device(like))


def where(xp: Namespace, condition: Array, values: Array, otherwise: float = 0.0) -> Array:
    """Return `values` where the condition holds, else a constant. Masked positions pass neither gradient nor NaN."""
    return xp.where(condition, values, constant(xp, otherwise, values))


def bounded(values: Array, lower: float | None, upper: float | None) -> Array:
    """Return `values` limited to bounds. The method works in old releases, in which the namespace's `clip` indexes."""
    return values if lower is None and upper is None else values.clip(lower, upper)


def difference(xp: Namespace, policy: Array, behaviour: Array, valid: Array) -> Array:
    """Return the log-ratio d, 0 where not valid.

    Both sides are set to 0 there before the subtraction, because the gradient would otherwise be NaN.
    """
    return where(xp, valid, policy) - where(xp, valid, behaviour)


def limited(log_ratio: Array) -> Array:
    """Return the log-ratio limited to ±20."""
    return bounded(log_ratio, -CLAMP, CLAMP)


def exp_clamped(xp: Namespace, log_ratio: Array) -> Array:
    """Return ρ = exp(clamp(d, ±20))."""
    return xp.exp(limited(log_ratio))


def row_sum(xp: Namespace, values_BT: Array) -> Array:
    """Return Σ over each sequence [B, 1]."""
    return xp.sum(values_BT, axis=-1, keepdims=True)


def row_count(xp: Namespace, flags_BT: Array, like: Array) -> Array:
    """Return the token count of each sequence, as floats of the type of `like` [B, 1]."""
    return row_sum(xp, xp.astype(flags_BT, like.dtype))


def row_mean(xp: Namespace, values_BT: Array, valid_BT: Array) -> Array:
    """Return the mean [B, 1] over each sequence's valid tokens, 0 for an empty one. `values_BT` must be 0 elsewhere."""
    count = row_count(xp, valid_BT, values_BT)
    return row_sum(xp, values_BT) / bounded(count, 1.0, None)


def row_any(xp: Namespace, flags_BT: Array) -> Array:
    """Return whether any flag of each sequence is set [B, 1]."""
    return xp.any(flags_BT, axis=-1, keepdims=True)


def row_extreme(xp: Namespace, values_BT: Array, valid_BT: Array, *, largest: bool, empty: float) -> Array:
    """Return the maximum or minimum [B, 1] over each sequence's valid tokens, or `empty` for a sequence without any."""
    chosen = where(xp, valid_BT, values_BT, float("-inf") if largest else float("inf"))
    of_rows = (xp.max if largest else xp.min)(chosen, axis=-1, keepdims=True)
    return where(xp, row_any(xp, valid_BT), of_rows, empty)


def extreme(xp: Namespace, values: Array, valid: Array, *, largest: bool) -> Array:
    """Return the largest or smallest of the valid values (0-d), −inf or +inf without any."""
    nothing = float("-inf") if largest else float("inf")
    reduce = xp.max if largest else xp.min
    rows = reduce(where(xp, valid, values, nothing), axis=-1)
    return reduce(xp.concat([rows, constant(xp, nothing, rows)[None]]))  # a batch may have no sequence


def at_level(xp: Namespace, d_BT: Array, valid_BT: Array, level: str) -> Array:
    """Return the log-ratio of a level: [B, T] for ``token``, [B, 1] for ``sequence`` (sum) and ``geometric`` (mean)."""
    if level == "token":
        return d_BT
    return row_sum(xp, d_BT) if level == "sequence" else row_mean(xp, d_BT, valid_BT)


def outside(xp: Namespace, values: Array, lower: float | None, upper: float | None) -> tuple[Array, Array]:
    """Return where values are below, and above, their bounds."""
    nowhere = xp.zeros_like(values, dtype=xp.bool)
    below = nowhere if lower is None else values < lower
    above = nowhere if upper is None else values > upper
    return below, above


def k3(xp: Namespace, log_ratio: Array) -> Array:
    """Return the K3 estimator, exp(d) − 1 − d with the exponential clamped."""
    return xp.expm1(limited(log_ratio)) - log_ratio


def binary_kl(xp: Namespace, behaviour: Array, policy: Array) -> Array:
    """Return KL(behaviour‖policy) of the token against all others as two outcomes (DPPO).

    1 − p is floored at 1e-7, since a certain token leaves no probability for the others.
    """
    p = xp.exp(behaviour)
    rest_p, rest_q = (bounded(-xp.expm1(side), 1e-7, None) for side in (behaviour, policy))
    return p * (behaviour - policy) + rest_p * (xp.log(rest_p) - xp.log(rest_q))
