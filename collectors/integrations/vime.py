"""Adapter of vime, slime's training with vLLM's engines, which is configured like slime by three options.

--custom-rollout-log-function-path logprobe.collectors.integrations.vime.rollout
--rollout-data-postprocess-path logprobe.collectors.integrations.vime.train
--get-mismatch-metrics --custom-tis-function-path logprobe.collectors.integrations.vime.tis
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from logprobe.collectors.integrations.slime import Adapter, megatron_place

_ADAPTER: Final = Adapter("vime")
rollout = _ADAPTER.rollout


def train(args: Any, rollout_id: int, rollout_data: Mapping[str, Any]) -> None:
    """Record one rank's part of a rollout, for ``--rollout-data-postprocess-path``."""
    _ADAPTER.train(args, rollout_id, rollout_data, megatron_place())


def tis(args: Any, **named: Any) -> tuple[Any, Any, Mapping[str, Any]]:
    """Return loss per token, masks and metrics, for ``--custom-tis-function-path``."""
    return _ADAPTER.tis(args, "vime.backends.megatron_utils.loss.vanilla_tis_function", named)
