"""Routes of a mixture of experts: the experts chosen by each layer, as one fingerprint per token and layer.

The ids of experts need too much space (48 layers × 8 experts are at least 384 bytes per token). Two bytes per layer
suffice to compare the *set* of experts between engine and trainer. Equal sets have equal fingerprints in any router
order. Two different sets have equal fingerprints by chance once in 65,535. Agreement is therefore never understated,
and overstated by at most 0.0015 % of the differences.

The route of a token is that of the preceding position, which predicted the token and determined its log-prob. Routes
are shifted like the logits, so every sampled token has one.

Dimensions: ``_N`` flat tokens, ``_L`` layers, ``_K`` experts per token.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from logprobe.collectors.errors import InputError
from logprobe.collectors.recorder import arrays
from logprobe.collectors.recorder.capture import Call, array_part, list_part
from logprobe.collectors.recorder.token_hash import mix

NO_ROUTE: Final = 0  # the fingerprint where a layer has none, or it is not known
_EXPERTS: Final = 1 << 16
_CHUNK: Final = 1 << 15  # (token, layer) pairs at a time: their sums stay in the cache


def fingerprints(experts_NLK: NDArray[Any]) -> NDArray[np.uint16]:
    """Return one number for the set of experts of each token and layer.

    Args:
        experts_NLK: ids of experts [tokens, layers, experts per token], whole numbers below 65,536, in any order.

    Returns:
        uint16 [tokens, layers]. The value is `NO_ROUTE` where an id is negative (padding), or where all of several
        places hold the same id. No router gives the latter, but vLLM writes zeros for layers without experts.

    Raises:
        InputError: the shape or type is wrong, or an id is out of range.
    """
    if experts_NLK.ndim != 3 or experts_NLK.dtype.kind not in "iu":  # noqa: PLR2004
        raise InputError(
            f"routes: {experts_NLK.dtype} {experts_NLK.shape}; pass whole numbers [tokens, layers, experts]"
        )
    tokens, layers, places = experts_NLK.shape
    if experts_NLK.size and int(experts_NLK.max()) >= _EXPERTS:
        raise InputError(f"routes: expert {experts_NLK.max()} is out of range; pass ids below {_EXPERTS}")
    result = np.full((tokens, layers), NO_ROUTE, np.uint16)
    rows = max(1, _CHUNK // max(1, layers))
    for start in range(0, tokens if places else 0, rows):
        result[start : start + rows] = _fingerprints(experts_NLK[start : start + rows])
    return result


def _fingerprints(experts_NLK: NDArray[Any]) -> NDArray[np.uint16]:
    """Return a number per set of ids.

    The sum of mixed ids does not depend on their order. A second mix hides which id differs.
    """
    experts_KNL = np.ascontiguousarray(np.moveaxis(experts_NLK, -1, 0))
    lowest, highest = experts_KNL.min(axis=0), experts_KNL.max(axis=0)
    total = np.zeros(lowest.shape, np.int64)
    mixed = np.empty_like(total)
    for ids in experts_KNL:
        total += np.take(_mixed_ids(), ids, out=mixed, mode="clip")  # a negative id is taken out below
    marks = (mix(total).view(np.uint64) % np.uint64(_EXPERTS - 1)).astype(np.uint16)
    marks += np.uint16(1)
    repeated = (lowest == highest) & (len(experts_KNL) > 1)
    marks[repeated | (lowest < 0)] = NO_ROUTE
    return marks


@cache
def _mixed_ids() -> NDArray[np.int64]:
    return mix(np.arange(_EXPERTS))


# --- As arguments of a recorder ---


def add_to(call: Call, value: Any) -> None:
    """Take the argument `routes` of a recorder's call by its shapes only. None is absent.

    Args:
        call: call with its token ids.
        value: routes in the layout of `token_ids`, followed by [layers, experts per token], or [layers] for
            `fingerprints`. A list may hold None for unknown routes.

    Raises:
        InputError: the routes do not fit `token_ids`.
    """
    if value is None or (arrays.is_list(value) and all(item is None for item in value)):
        return
    if call.layout == "list":
        _add_list(call, value)
        return
    piece, tokens = arrays.as_piece("routes", value), call.parts[0].shape
    _check([piece], [tokens])
    call.parts.append(array_part("routes", piece))


def _add_list(call: Call, value: Any) -> None:
    items = arrays.host_list("routes", value, call.sequences)
    given = [item is not None for item in items]
    pieces = [arrays.as_piece("routes", item) for item in items if item is not None]
    lengths = [(length,) for length, present in zip(call.lengths or [], given, strict=True) if present]
    _check(pieces, lengths)
    # Not per token, as far as reducing on a device goes: routes are fingerprinted on the host.
    call.parts.append(list_part("routes", pieces, arrays.piece_dtype(pieces[0]), per_token=False))
    call.values["routes_given"] = given


def _check(pieces: Sequence[arrays.Piece], tokens: Sequence[tuple[int, ...]]) -> None:
    first, leading = pieces[0], len(tokens[0])
    for piece, expected in zip(pieces, tokens, strict=True):
        shape = tuple(piece.shape)
        if shape[:leading] != expected or len(shape) - leading not in (1, 2):
            raise InputError(
                f"routes: shape {shape}; pass token_ids' {expected}, then [layers, experts per token] or [layers]"
            )
        if shape[leading:] != tuple(first.shape)[leading:] or piece.dtype != first.dtype:
            raise InputError("routes: sequences differ in layers, experts per token or type; pass equal ones")
    if arrays.piece_dtype(first).kind not in "iu":
        raise InputError(f"routes: {first.dtype} is not an integer type; pass whole numbers")


# --- In the recorder's thread ---


def decode(
    selected: NDArray[Any], trailing: tuple[int, ...], given_S: list[bool] | None, lengths_S: NDArray[np.int64]
) -> NDArray[np.uint16] | None:
    """Return fingerprints [tokens, layers] of a call's routes without layers that have no experts, or None if none is
    left.

    Args:
        selected: copied routes, restricted to the tokens of the call's sequences.
        trailing: ``(layers, experts per token)``, or ``(layers,)`` of fingerprints.
        given_S: False for sequences whose route is None in a list, or None if all sequences have routes.
        lengths_S: tokens of each sequence.

    Raises:
        InputError: an id is out of range.
    """
    flat = selected.reshape(-1, *trailing)
    marks = fingerprints(flat) if len(trailing) > 1 else _as_fingerprints(flat)
    if given_S is not None and not all(given_S):
        placed = np.full((int(lengths_S.sum()), marks.shape[1]), NO_ROUTE, np.uint16)
        placed[np.repeat(np.array(given_S, np.bool_), lengths_S)] = marks
        marks = placed
    routed = (marks != NO_ROUTE).any(axis=0)
    return np.ascontiguousarray(marks[:, routed]) if routed.any() else None


def _as_fingerprints(values: NDArray[Any]) -> NDArray[np.uint16]:
    if values.size and not 0 <= int(values.min()) <= int(values.max()) < _EXPERTS:
        raise InputError("routes: fingerprints are invalid; compute them by logprobe.collectors.routes.fingerprints")
    return values.astype(np.uint16)
