"""SGLang's answers, and its plugin. The engine needs a GPU: the answers here have the form that SGLang 0.5.23 gives them, and the manager of
the plugin has the names and the life of SGLang's own (a request is forgotten while its last batch is handled).
"""

from __future__ import annotations

import asyncio
import sys
import tomllib
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from spool_contents import by_sample, health_events, rows

from logprobe.collectors import Recorder, sglang
from logprobe.collectors.integrations.wrapping import Process


def answer(name: str, tokens: list[int], **meta: Any) -> dict[str, Any]:
    pairs = [(-0.25 * (place + 1), token, None) for place, token in enumerate(tokens)]
    known = {"id": name, "finish_reason": {"type": "stop", "matched": 1}, "prompt_tokens": 5, "weight_version": "8"}
    counts = {"completion_tokens": len(tokens), "cached_tokens": 3, "output_token_logprobs": pairs}
    return {"text": "", "output_ids": tokens, "meta_info": {**known, **counts, **meta}}


def test_answers_become_rollouts_with_exact_versions(home: Path) -> None:
    spans = [{"version": "7", "start": 0, "end": 2}, {"version": "8", "start": 2, "end": 9}]
    with Recorder(home, "run") as recorder:
        assert sglang.record(recorder, [answer("a", [4, 5, 6], weight_versions=spans), answer("b", [7, 8])])
        assert sglang.record(
            recorder, answer("c", [9], finish_reason={"type": "length", "length": 1}), idle_updates=True
        )
        assert sglang.record(recorder, answer("d", [9], weight_version="default"), idle_updates=True)
    found = by_sample(home, "rollout")
    assert found["a"]["token_ids"] == [4, 5, 6]
    assert found["a"]["logprobs"] == [-0.25, -0.5, -0.75]
    assert found["a"]["spans"] == [{"start": 0, "end": 2, "version": "7"}, {"start": 2, "end": 3, "version": "8"}]
    assert (found["a"]["finish_reason"], found["a"]["prompt_length"], found["a"]["cached_prefix_tokens"]) == (
        "stop",
        5,
        3,
    )
    assert not [span for span in found["b"]["spans"] or [] if span["version"]]  # it may have changed on the way
    assert found["c"]["spans"] == [{"start": 0, "end": 1, "version": "8"}]
    assert found["c"]["finish_reason"] == "length"
    assert not [span for span in found["d"]["spans"] or [] if span["version"]]


def test_an_answer_without_logprobs_is_counted(home: Path) -> None:
    with Recorder(home, "run") as recorder:
        assert not sglang.record(recorder, {"text": "", "meta_info": {"id": "a"}})
    assert not rows(home, "rollout")
    assert {"internal_error", "bad_input"} & set(health_events(home))


class TokenizerManager:
    """What the plugin sees of SGLang's."""

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


def load_plugin(home: Path, monkeypatch: pytest.MonkeyPatch, manager: type) -> None:
    """As SGLang does: it finds the entry point, and calls it before its manager is imported, or after."""
    monkeypatch.setenv("LOGPROBE_HOME", str(home))
    monkeypatch.setenv("LOGPROBE_RUN", "run")
    module = ModuleType(sglang.MODULE)
    module.TokenizerManager = manager  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, sglang.MODULE, module)
    points = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]["entry-points"]
    place, _, name = points["sglang.srt.plugins"]["logprobe"].partition(":")
    assert place == sglang.__name__
    getattr(sglang, name)()


def test_the_plugin_records_finished_requests(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    manager = type("TokenizerManager", (), dict(vars(TokenizerManager)))
    watches: list[Any] = []
    monkeypatch.setattr(sglang, "Process", lambda name: watches.append(made := Process(name)) or made)
    load_plugin(home, monkeypatch, manager)
    host = manager()
    for rid, wanted in (("a", True), ("b", True), ("c", False)):
        host.rid_to_state[rid] = SimpleNamespace(
            obj=SimpleNamespace(return_logprob=wanted), output_token_logprobs_val=[], output_token_logprobs_idx=[]
        )
    spans = [SimpleNamespace(version="3", start=0, end=1), SimpleNamespace(version="4", start=1, end=3)]
    first = batch(["a", "b", "c"], [[-0.5], [-1.0], []], [[4], [5], []], [False, True, False])
    last = batch(["a", "c"], [[-0.25, -0.125], []], [[6, 7], []], [True, True], [spans, None])
    for one in (first, last):
        asyncio.run(host._handle_batch_output(one))
    assert host.rid_to_state == {}
    watches[0].recorder.close()
    found = by_sample(home, "rollout")
    assert set(found) == {"a", "b"}
    assert found["a"]["token_ids"] == [4, 6, 7]
    assert found["a"]["logprobs"] == [-0.5, -0.25, -0.125]
    assert [(span["end"], span["version"]) for span in found["a"]["spans"]] == [(1, "3"), (3, "4")]
    assert "SGLang" in health_events(home)["self_test"][0]["message"]


def test_a_changed_sglang_is_left_alone(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    manager = type("TokenizerManager", (), {"_handle_batch_output": lambda self, recv_obj: None})
    before, watches = dict(vars(manager)), []
    monkeypatch.setattr(sglang, "Process", lambda name: watches.append(made := Process(name)) or made)
    load_plugin(home, monkeypatch, manager)
    assert dict(vars(manager)) == before
    watches[0].recorder.close()
    assert "not a coroutine" in health_events(home)["self_test"][0]["message"]
