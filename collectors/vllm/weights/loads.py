"""Calls on an engine's workers that leave its weights unchanged.

Names do not reveal which calls load weights, because a framework may call its own function `sync`, a lambda or
``apply_model``. This module therefore lists harmless calls of vLLM. After any other call the weights are unknown until
a label or mark names them. A user can add a framework's harmless calls: ``LOGPROBE_RECORD=harmless=a:b``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from logprobe.collectors.environment import option

READ_WEIGHTS: Final = "logprobe_read_weights"  # our own, on each worker
CHECKSUMS: Final = "compute_weight_checksums"  # vLLM's own: SHA-256 of every whole tensor, of each worker
_OF_EVERY_STEP: Final = (
    "execute_model",
    "sample_tokens",
    "take_draft_token_ids",
    "execute_dummy_batch",
    "check_health",
)
_OF_THE_START: Final = (
    "init_worker", "init_device", "determine_available_memory", "get_kv_cache_spec", "get_supported_kv_cache_layouts",
    "set_kv_cache_layout", "initialize_from_config", "initialize_cache", "compile_or_warm_up_model",
    "get_supported_tasks", "get_kv_connector_handshake_metadata", "supports_draft_weight_updates",
    "update_max_model_len", "get_cache_block_size_bytes", "init_weight_transfer_engine", "update_environment_variables",
)  # fmt: skip
_THAT_LOOK: Final = (
    "get_model_inspection", CHECKSUMS, "get_weight_version", "set_weight_version", "vocab_size",
    "list_loras", "get_encoder_timing_stats", "get_compilation_match_table", "save_sharded_state",
    "save_tensorized_model", "profile", "annotate_profile", "synchronize_device", READ_WEIGHTS,
)  # fmt: skip
_AROUND_WEIGHTS: Final = (
    "add_lora", "remove_lora", "pin_lora",  # the weights below adapters stay as they are
    "wake_up",  # brings back what `sleep` at level 1 put away; at level 2 that call made them unknown
    "reset_mm_cache", "reset_encoder_cache", "release_late_interaction_query_cache", "shutdown_weight_transfer_engine",
    "shutdown",
)  # fmt: skip
_HARMLESS: Final = frozenset((*_OF_EVERY_STEP, *_OF_THE_START, *_THAT_LOOK, *_AROUND_WEIGHTS))


def may_change_weights(method: Any, kwargs: Mapping[str, Any] | None = None) -> bool:
    """Return whether `collective_rpc(method, kwargs=kwargs)` may change the weights. A function always may.

    >>> [may_change_weights(method) for method in ("execute_model", "compute_weight_checksums", "pull", len)]
    [False, False, True, True]
    >>> [may_change_weights("sleep", {"level": level}) for level in (1, 2)]
    [False, True]
    """
    if type(method) is not str:
        return True
    if method == "sleep":
        return bool((kwargs or {}).get("level", 1) != 1)
    return method not in _HARMLESS and method not in re.findall(r"[^\s:]+", option("harmless") or "")
