"""SGLang's tokenizer manager: the names and the life of SGLang's own (a request is forgotten while its last batch is handled)."""

from __future__ import annotations

import asyncio
import importlib
import tomllib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from conformance.host import Host, Rows

MODULE = "sglang.srt.managers.tokenizer_manager"


class TokenizerManager:
    def __init__(self) -> None:
        self.rid_to_state: dict[str, Any] = {}

    async def _handle_batch_output(self, recv_obj: Any) -> None:
        await asyncio.sleep(0)
        for place, rid in enumerate(recv_obj.rids):
            state = self.rid_to_state[rid]
            if recv_obj.output_token_logprobs_val is not None:
                state.output_token_logprobs_val.extend(recv_obj.output_token_logprobs_val[place])
                state.output_token_logprobs_idx.extend(recv_obj.output_token_logprobs_idx[place])
            if recv_obj.finished_reasons[place] is not None:
                del self.rid_to_state[rid]


def batch(rids: list[str], values: Any, tokens: Any, ended: list[bool], spans: Any = None) -> Any:
    reasons = [{"type": "stop"} if end else None for end in ended]
    return SimpleNamespace(
        rids=rids, output_token_logprobs_val=values, output_token_logprobs_idx=tokens, finished_reasons=reasons,
        weight_versions=spans, prompt_tokens=[5] * len(rids), cached_tokens=[0] * len(rids),
    )  # fmt: skip


class SgLang(Host):
    """Two requests that asked for log-probs, and one that did not."""

    framework, said, count = "SGLang", "sglang", 2
    lacks = "TokenizerManager._handle_batch_output is not a coroutine"

    def __init__(self, patch: Any) -> None:
        super().__init__(patch)
        self.manager = type("TokenizerManager", (), dict(vars(TokenizerManager)))

    def later(self) -> None:
        self.manager = type("TokenizerManager", (), {"_handle_batch_output": lambda self, recv_obj: None})

    def wrapped(self) -> Any:
        return self.manager

    def begin(self) -> None:
        """As SGLang does: it finds the entry point, and calls it before its manager is imported, or after."""
        self.module(MODULE, TokenizerManager=self.manager)
        points = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]["entry-points"]
        place, _, name = points["sglang.srt.plugins"]["logprobe"].partition(":")
        getattr(importlib.import_module(place), name)()

    def step(self, renamed: str | None = None) -> None:
        host = self.manager()
        for rid, wanted in (("a", True), ("b", True), ("c", False)):
            host.rid_to_state[rid] = SimpleNamespace(
                obj=SimpleNamespace(return_logprob=wanted), output_token_logprobs_val=[], output_token_logprobs_idx=[]
            )
        spans = [SimpleNamespace(version="3", start=0, end=1), SimpleNamespace(version="4", start=1, end=9)]
        first = batch(["a", "b", "c"], [[-0.5], [-1.0], []], [[4], [5], []], [False, True, False])
        last = batch(["a", "c"], [[-0.25, -0.125], []], [[6, 7], []], [True, True], [spans, None])
        for each in (first, last):
            asyncio.run(host._handle_batch_output(each))
        assert host.rid_to_state == {}

    def sampled(self) -> Rows:
        common = {"finish_reason": "stop", "prompt_length": 5, "cached_prefix_tokens": 0}
        return {
            "a": common | {"token_ids": [4, 6, 7], "logprobs": [-0.5, -0.25, -0.125], "spans": ["3", "4"]},
            "b": common | {"token_ids": [5], "logprobs": [-1.0], "spans": []},
        }
