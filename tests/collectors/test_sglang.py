"""SGLang's answers, in the form that SGLang 0.5.23 gives them; its plugin is in `tests/conformance`. The engine needs a GPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from spool_contents import by_sample, health_events, rows

from logprobe.collectors import Recorder, sglang


def answer(name: str, tokens: list[int], **meta: Any) -> dict[str, Any]:
    pairs = [(-0.25 * (place + 1), token, None) for place, token in enumerate(tokens)]
    known = {"id": name, "finish_reason": {"type": "stop", "matched": 1}, "prompt_tokens": 5, "weight_version": "8"}
    counts = {"completion_tokens": len(tokens), "cached_tokens": 3, "output_token_logprobs": pairs}
    return {"text": "", "output_ids": tokens, "meta_info": {**known, **counts, **meta}}


def test_answers_become_rollouts_with_exact_versions(home: Path) -> None:
    spans = [{"version": "7", "start": 0, "end": 2}, {"version": "8", "start": 2, "end": 9}]
    ended = {"finish_reason": {"type": "length", "length": 1}}
    with Recorder(home, "run") as recorder:
        assert sglang.record(recorder, [answer("a", [4, 5, 6], weight_versions=spans), answer("b", [7, 8])])
        assert sglang.record(recorder, answer("c", [9], **ended), idle_updates=True)
        assert sglang.record(recorder, answer("d", [9], weight_version="default"), idle_updates=True)
    found = by_sample(home, "rollout")
    expected = {
        "token_ids": [4, 5, 6],
        "logprobs": [-0.25, -0.5, -0.75],
        "spans": [{"start": 0, "end": 2, "version": "7"}, {"start": 2, "end": 3, "version": "8"}],
        "finish_reason": "stop",
        "prompt_length": 5,
        "cached_prefix_tokens": 3,
    }
    assert {name: found["a"][name] for name in expected} == expected
    assert found["c"]["spans"] == [{"start": 0, "end": 1, "version": "8"}]
    assert found["c"]["finish_reason"] == "length"
    for name in "bd":  # the version may have changed on the way, or was never named
        assert not [span for span in found[name]["spans"] or [] if span["version"]]


def test_an_answer_without_logprobs_is_counted(home: Path) -> None:
    with Recorder(home, "run") as recorder:
        assert not sglang.record(recorder, {"text": "", "meta_info": {"id": "a"}})
    assert not rows(home, "rollout")
    assert {"internal_error", "bad_input"} & set(health_events(home))
