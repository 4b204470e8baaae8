"""Metrics and corrections of other frameworks for the same tokens, under the frameworks' keys.

from logprobe.monitor import peers

peers.view("verl", rollout_logprobs, trainer_logprobs, mask, rollout_is="token", rollout_is_threshold=2.0)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from numbers import Real
from typing import Any, Final

import numpy as np
import pyarrow as pa

from logprobe.collectors.errors import ConfigurationError, InputError
from logprobe.collectors.recorder import arrays
from logprobe.monitor.metrics.layouts import flattened, mask_of, per_token, require_lengths
from logprobe.monitor.peers.formulas import PEERS, Array, Option, Peer, Reading
from logprobe.monitor.ragged import float_lists
from logprobe.monitor.settings.located import instead

__all__ = ["PEERS", "Correction", "Report", "correction", "named", "options_of", "view", "view_of_table"]

# Arrays by the names that they have in the table.
_SIDES: Final = {"r": "rollout_logprobs", "t": "trainer_logprobs", "c": "current_logprobs", "ref": "reference_logprobs"}
_WORDS: Final = {"true": True, "false": False, "none": None, "null": None}


class Report(dict[str, float]):
    """Metrics by the keys of a framework's dashboard. Indexing also accepts names without the logger's prefix."""

    def __init__(self, metrics: Mapping[str, float], prefixes: tuple[str, ...]) -> None:
        super().__init__(metrics)
        self._full = {
            key.removeprefix(prefix): key for prefix in reversed(prefixes) for key in metrics if key.startswith(prefix)
        }

    def __missing__(self, key: str) -> float:
        if key not in self._full:
            raise KeyError(f"{key}; {instead(key.partition('/')[2] or key, [*self._full, *self])}")
        return self[self._full[key]]


@dataclass(frozen=True)
class Correction:
    """Effect of a framework on the loss of each token [batch, time]."""

    weights_BT: Array  # factor; 1 where it corrects nothing
    mask_BT: Array  # loss mask, after rejection


def view(
    peer: str,
    rollout_logprobs: Any,
    trainer_logprobs: Any,
    mask: Any = None,
    *,
    current_logprobs: Any = None,
    reference_logprobs: Any = None,
    advantages: Any = None,
    **options: Any,
) -> Report:
    """Return the metrics of a framework for these tokens, with its formulas, clamps and treatment of empty sequences.

    Args:
        peer: one of `PEERS`.
        rollout_logprobs: r [batch, time], or a list of 1-D arrays, as numpy arrays, torch tensors or lists of any float
            type.
        trainer_logprobs: t, of the same shape.
        mask: non-zero for tokens that the policy sampled and trains on, or None for all tokens.
        current_logprobs: c, of the same shape. Without it, the metrics that need it are omitted.
        reference_logprobs: log-probs of the reference policy, of the same shape. Without them, the metrics that need
            them are omitted.
        advantages: advantages per token, or one per sequence. Without them, the metrics that need them are omitted.
        options: settings of the framework by its names, as listed in docs/import-export.md.

    Returns:
        Key → value, as the framework logs it, including NaN and infinities. Empty if the framework would log nothing.

    Raises:
        ConfigurationError: unknown peer or option, or invalid value.
        InputError: the arrays have incompatible shapes.
    """
    sides = (rollout_logprobs, trainer_logprobs, current_logprobs, reference_logprobs)
    return Report(_reading(peer, options, sides, mask, advantages).metrics, named(peer).prefixes)


def view_of_table(peer: str, tokens: pa.Table, **options: Any) -> Report:
    """Return the view of a step's raw tokens from the query `peer_tokens`."""

    def known(name: str) -> list[Array] | None:
        lists = float_lists(tokens[name])
        return None if all(np.isnan(values).all() for values in lists) else lists

    return view(
        peer,
        *(float_lists(tokens[name]) for name in ("rollout", "trainer", "mask")),
        current_logprobs=known("current"),
        reference_logprobs=known("reference"),
        advantages=known("advantage"),
        **options,
    )


def correction(
    peer: str,
    rollout_logprobs: Any,
    trainer_logprobs: Any,
    mask: Any = None,
    *,
    current_logprobs: Any = None,
    advantages: Any = None,
    **options: Any,
) -> Correction:
    """Return the importance weights and the loss mask that a framework would apply.

    The arguments and errors are those of `view`.
    """
    sides = (rollout_logprobs, trainer_logprobs, current_logprobs, None)
    reading = _reading(peer, options, sides, mask, advantages)
    weights = np.ones_like(reading.mask) if reading.weights is None else reading.weights
    return Correction(np.broadcast_to(weights, reading.mask.shape), reading.mask)


def named(name: str) -> Peer:
    """Return a peer by name. Raises `ConfigurationError` for an unknown name."""
    if name not in PEERS:
        raise ConfigurationError(f"no peer {name!r}; {instead(name, list(PEERS))}")
    return PEERS[name]


def _reading(name: str, options: Mapping[str, Any], sides: tuple[Any, ...], mask: Any, advantages: Any) -> Reading:
    peer = named(name)
    settings = _settings(peer, options)
    batch = _batch(sides, mask, advantages)
    if not batch["mask"].size:
        return Reading({}, None, batch["mask"])
    with np.errstate(all="ignore"):  # the frameworks do not stumble over infinities either: they log them
        return peer.read(batch, settings)


def _batch(sides: tuple[Any, ...], mask: Any, advantages: Any) -> dict[str, Any]:
    """Return padded arrays by the names of the table, None for missing ones."""
    given = zip(_SIDES.items(), sides, strict=True)
    flat = {name: flattened(called, side) for (name, called), side in given if side is not None}
    for name in ("r", "t"):
        if name not in flat or (flat[name].lengths < 0).any():
            raise InputError(
                f"{_SIDES[name]}: some tokens have none; a peer's view needs every token, so pass them all"
            )
    lengths = flat["r"].lengths
    for name, values in flat.items():
        require_lengths(_SIDES[name], values, lengths)
    flat["mask"] = mask_of(mask, lengths)
    if advantages is not None:
        flat["A"] = per_token("advantages", advantages, lengths)
    time = max(int(arrays.is_ragged(sides[0])), *lengths.tolist(), 0)
    padded = {name: values.padded(time) for name, values in flat.items()}
    return dict.fromkeys((*_SIDES, "A")) | padded


def options_of(peer: str, texts: Mapping[str, str]) -> dict[str, object]:
    """Convert options from command-line text to flags, numbers and None.

    Raises:
        ConfigurationError: an unknown peer or option, or a value that does not fit.
    """
    known = named(peer).options
    options = {name: text if name in known and known[name].text else _from_text(text) for name, text in texts.items()}
    _settings(named(peer), options)
    return options


def _from_text(text: str) -> Any:
    if text.lower() in _WORDS:
        return _WORDS[text.lower()]
    try:
        return float(text)
    except ValueError:
        return text


def _settings(peer: Peer, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the value of every option, given or default."""
    for name, value in given.items():
        if name not in peer.options:
            raise ConfigurationError(f"{peer.name} has no option {name!r}; {instead(name, list(peer.options))}")
        wanted = _wanted(value, peer.options[name])
        if wanted:
            raise ConfigurationError(f"{peer.name}: {name}={value!r} is invalid; pass {wanted}")
    return {name: given.get(name, option.default) for name, option in peer.options.items()}


def _wanted(value: Any, option: Option) -> str:
    """Return the requirement that a value violates, or "" if it is valid."""
    if option.choices:
        return "" if value in option.choices else f"one of {', '.join(map(repr, option.choices))}"
    if isinstance(option.default, bool):
        return "" if isinstance(value, bool) else "True or False"
    if option.text or value is None:
        return ""
    if isinstance(value, bool) or not isinstance(value, Real):  # numpy's numbers are of this kind, too
        return "a number or None"
    return "a number above 0" if option.positive and not float(value) > 0 else ""
