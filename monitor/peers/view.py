"""The two questions one can ask a peer: what would you log, and what would you do to the loss?

Dimensions: ``_BT`` padded batch × time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from logprobe.collectors.errors import ConfigurationError
from logprobe.monitor.peers.ms_swift import MS_SWIFT
from logprobe.monitor.peers.nemo_rl import NEMO_RL
from logprobe.monitor.peers.openrlhf import OPENRLHF
from logprobe.monitor.peers.peer import Floats, Peer, Reading, Tokens, suggestion, tokens_of
from logprobe.monitor.peers.pipelinerl import PIPELINERL
from logprobe.monitor.peers.prime_rl import PRIME_RL
from logprobe.monitor.peers.slime import SLIME
from logprobe.monitor.peers.trl import TRL
from logprobe.monitor.peers.verl import VERL

PEERS: Final[Mapping[str, Peer]] = {
    entry.name: entry for entry in (VERL, MS_SWIFT, SLIME, TRL, PIPELINERL, NEMO_RL, PRIME_RL, OPENRLHF)
}


class Report(dict[str, float]):
    """A peer's numbers by the keys of its dashboard; indexing, `in` and `get` also take names without the logger's
    prefix."""

    def __init__(self, metrics: Mapping[str, float], prefixes: tuple[str, ...]) -> None:
        super().__init__(metrics)
        self._prefixes = prefixes

    def __missing__(self, key: str) -> float:
        full = self._full(key)
        if full is None:
            raise KeyError(f"{key}{suggestion(self._short(key), map(self._short, self))}")
        return self[full]

    def __contains__(self, key: object) -> bool:
        return isinstance(key, str) and self._full(key) is not None

    def get(self, key: str, default: Any = None) -> Any:
        """The number under a key or its short name, `default` without one."""
        full = self._full(key)
        return default if full is None else self[full]

    def _full(self, key: str) -> str | None:
        names = (key, *(prefix + key for prefix in self._prefixes))
        return next((name for name in names if dict.__contains__(self, name)), None)

    def _short(self, key: str) -> str:
        return next((key.removeprefix(prefix) for prefix in self._prefixes if key.startswith(prefix)), key)


@dataclass(frozen=True)
class Correction:
    """What a peer does to the loss of each token [batch, time]."""

    weights_BT: Floats  # factor; 1 where it corrects nothing
    mask_BT: Floats  # loss mask, after rejection


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
    """What a framework would log for these tokens, with its own formulas, clamps, reductions and treatment of empties.

    Args:
        peer: one of `PEERS`.
        rollout_logprobs: r [batch, time], or a list of 1-D arrays; numpy, torch or lists, in any float type.
        trainer_logprobs: t, of the same shape.
        mask: non-zero where the policy sampled the token and trains on it; None: everywhere.
        current_logprobs: c, of the same shape; what needs it is left out without.
        reference_logprobs: of the reference policy, of the same shape; what needs it is left out without.
        advantages: per token, or one per sequence; what needs them is left out without.
        options: the framework's own settings, by its own names; docs/peers.md lists them.

    Returns:
        Key → value, as the framework logs it: NaN and infinities where it would log those. Empty where it would log
        nothing.

    Raises:
        ConfigurationError: an unknown peer or option, or a value that does not fit.
        InputError: the arrays do not fit together.
    """
    framework = named(peer)
    _, reading = _reading(
        framework,
        options,
        rollout=rollout_logprobs,
        trainer=trainer_logprobs,
        mask=mask,
        current=current_logprobs,
        advantages=advantages,
        reference=reference_logprobs,
    )
    return Report(reading.metrics, framework.prefixes)


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
    """The importance weights and the loss mask that a framework would apply. Arguments and errors as of `view`."""
    tokens, reading = _reading(
        named(peer),
        options,
        rollout=rollout_logprobs,
        trainer=trainer_logprobs,
        mask=mask,
        current=current_logprobs,
        advantages=advantages,
    )
    weights = np.ones_like(tokens.mask_BT) if reading.weights_BT is None else reading.weights_BT
    return Correction(
        np.broadcast_to(weights, tokens.mask_BT.shape), tokens.mask_BT if reading.mask_BT is None else reading.mask_BT
    )


def named(name: str) -> Peer:
    """A peer by name. Raises `ConfigurationError` when there is none of that name."""
    if name not in PEERS:
        raise ConfigurationError(f"no peer {name!r}{suggestion(name, PEERS)}")
    return PEERS[name]


def _reading(peer: Peer, given: Mapping[str, Any], **arrays: Any) -> tuple[Tokens, Reading]:
    options = peer.parse(given)
    tokens = tokens_of(**arrays, dtype=np.dtype(options.dtype))
    if not tokens.mask_BT.size:
        return tokens, Reading({})
    with np.errstate(all="ignore"):  # the frameworks do not stumble over infinities either: they log them
        return tokens, peer.read(tokens, options)
