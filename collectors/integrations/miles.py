"""Adapter of miles, which is configured like slime by three options.

    --custom-rollout-log-function-path logprobe.collectors.integrations.miles.rollout
    --rollout-data-postprocess-path logprobe.collectors.integrations.miles.train
    --get-mismatch-metrics --custom-tis-function-path logprobe.collectors.integrations.miles.tis

miles passes no data to its postprocess function. It logs the same data immediately afterwards, and `train` records
them there.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any, Final

from logprobe.collectors.integrations.slime import Adapter, Place

ACTORS: Final = ("miles.backends.megatron_utils.actor", "miles.backends.fsdp_utils.actor")
_ADAPTER: Final = Adapter("miles")
_WRAPPED: Final[set[str]] = set()
rollout = _ADAPTER.rollout


def train(args: Any, *_: Any) -> None:  # noqa: ARG001 - as miles calls it
    """Record the data that miles logs next, for ``--rollout-data-postprocess-path``."""
    for name in ACTORS:
        module = sys.modules.get(name)
        if module is None or name in _WRAPPED:
            continue
        _WRAPPED.add(name)
        if _ADAPTER.process.knows(module, {"log_rollout_data": ("rollout_id", "args", "rollout_data")}):
            _ADAPTER.process.before(module, "log_rollout_data", _logged)


def _logged(rollout_id: int, args: Any, rollout_data: Mapping[str, Any]) -> None:
    parallel = sys.modules["miles.backends.training_utils.parallel"].get_parallel_state()
    records = parallel.tp.rank == 0 and parallel.cp.rank == 0 and parallel.is_pp_last_stage
    _ADAPTER.train(args, rollout_id, rollout_data, Place(records, int(parallel.cp.size)))


def tis(args: Any, **named: Any) -> tuple[Any, Any, Mapping[str, Any]]:
    """Return loss per token, masks and metrics, for ``--custom-tis-function-path``."""
    return _ADAPTER.tis(args, "miles.backends.training_utils.loss_hub.corrections.vanilla_tis_function", named)
