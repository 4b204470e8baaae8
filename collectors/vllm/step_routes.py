"""Routes of a mixture of experts in the outputs of one engine step.

vLLM (0.32, ``enable_return_routed_experts``) puts expert ids [positions, layers, experts per token] into the outputs of
a step. They cover the positions computed since the last step. Those of the prompt come with the first token, then one
per token. The last position predicted the newest token, so the last n positions belong to n new tokens.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from logprobe.collectors.routes import fingerprints


def returns_routes(vllm_config: Any) -> bool:
    """Return whether this engine's outputs carry routes, False if this vLLM does not support them."""
    auxiliary = getattr(vllm_config, "aux_output_config", None)
    return bool(getattr(auxiliary, "enable_return_routed_experts", False))


def routes_of_step(outputs_by_client: dict[int, Any]) -> Iterator[tuple[str, int, NDArray[np.uint16]]]:
    """Yield request id, token count and fingerprints [≤ tokens, layers] of the newest tokens of every output.

    One call processes all outputs of a step. One call per request would cost more than the rest of capture together.
    """
    counted: list[tuple[str, int, int]] = []
    pieces: list[NDArray[Any]] = []
    for outputs in outputs_by_client.values():
        for output in outputs.outputs:
            count, rows = len(output.new_token_ids), output.routed_experts
            with_routes = 0 if rows is None else min(count, len(rows))
            if count:
                counted.append((output.request_id, count, with_routes))
            if with_routes:
                pieces.append(rows[-with_routes:])
    marks = fingerprints(np.concatenate(pieces)) if pieces else np.empty((0, 0), np.uint16)
    start = 0
    for name, count, with_routes in counted:
        yield name, count, marks[start : start + with_routes]
        start += with_routes
