"""The probe of an engine in the trainer's process, with an engine that follows vLLM's objects."""

from __future__ import annotations

import json
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from engine_process import spooled

from logprobe.collectors import Recorder
from logprobe.collectors.vllm.probe import Probe

RUN = "run"
PROMPT = [11, 12, 13]
PLAIN = SimpleNamespace(temperature=1.0, top_p=1.0, top_k=0)


class Engine:
    """`vllm.LLM` as far as the probe uses it; r of the token at place i is −i."""

    def __init__(self, mode: str = "processed_logprobs") -> None:
        config = SimpleNamespace(logprobs_mode=mode, max_model_len=64)
        self.llm_engine = SimpleNamespace(vllm_config=SimpleNamespace(model_config=config))
        self.asked: list[dict[str, Any]] = []
        self.broken = False

    def generate(self, prompts: list[dict[str, Any]], params: Any, *, use_tqdm: bool) -> list[Any]:
        if self.broken:
            raise RuntimeError("the engine died")
        assert (params.max_tokens, params.prompt_logprobs, params.extra_args, use_tqdm) == (
            1,
            0,
            {"logprobe_probe": 1},
            False,
        )
        self.asked += prompts
        return [SimpleNamespace(prompt_logprobs=rows(prompt["prompt_token_ids"])) for prompt in prompts]


def rows(tokens: list[int]) -> list[Any]:
    return [None, *({token: SimpleNamespace(logprob=-float(at))} for at, token in enumerate(tokens) if at)]


def answered(shift: float = 0.0, *, cached: int = 0, tokens: int = 4, logprobs: bool = True) -> SimpleNamespace:
    ids = list(range(20, 20 + tokens))
    said = [{t: SimpleNamespace(logprob=shift - len(PROMPT) - at)} for at, t in enumerate(ids)] if logprobs else None
    completion = SimpleNamespace(token_ids=ids, logprobs=said)
    return SimpleNamespace(prompt_token_ids=PROMPT, outputs=[completion], num_cached_tokens=cached)


@pytest.fixture(autouse=True)
def _params(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "vllm", SimpleNamespace(SamplingParams=SimpleNamespace))


def test_the_gap_is_recorded_with_the_step_and_told_by_whose_prompt_was_cached(tmp_path: Path) -> None:
    engine = Engine()
    with Recorder(tmp_path, RUN) as recorder:
        found = Probe(engine, recorder, share=1.0).look(
            [answered(0.5, cached=2), *[answered()] * 3], step=9, params=PLAIN
        )
    assert found is not None
    k3 = math.exp(-0.5) + 0.5 - 1
    assert found["probe/cached_k3"] == pytest.approx(k3)
    assert (found["probe/uncached_k3"], found["probe/tokens"], found["probe/scored_tokens"]) == (0, 8, 16)
    assert found["probe/k3"] == pytest.approx(k3 / 2)
    (row,) = spooled(tmp_path, RUN, "step")
    assert (row["step"], dict(row["scalars"])) == (9, found)
    assert len({prompt["cache_salt"] for prompt in engine.asked}) == len(engine.asked) == 2


@pytest.mark.parametrize("share", [0.001, 0.4, 0.6, 1.0])
def test_the_share_is_kept_over_many_looks(tmp_path: Path, share: float) -> None:
    engine = Engine()
    with Recorder(tmp_path, RUN) as recorder:
        probe = Probe(engine, recorder, share=share)
        for step in range(10):
            probe.look([answered(), answered()], step=step, params=PLAIN)
    scored = sum(len(prompt["prompt_token_ids"]) + 1 for prompt in engine.asked)
    assert share * 80 - 8 < scored <= share * 80


@pytest.mark.parametrize(
    ("mode", "params", "works"),
    [
        ("raw_logprobs", SimpleNamespace(temperature=0.7, top_p=0.9, top_k=5), True),
        ("processed_logprobs", SimpleNamespace(temperature=0.7, top_p=1.0, top_k=0), False),
        ("processed_logprobs", SimpleNamespace(temperature=1.0, top_p=0.9, top_k=0), False),
        ("processed_logprobs", SimpleNamespace(temperature=1.0, top_p=1.0, top_k=5), False),
        ("processed_logprobs", SimpleNamespace(temperature=1.0, top_p=1.0, top_k=-1), True),
        ("processed_logits", PLAIN, False),
    ],
)
def test_only_what_prompt_log_probs_can_be_compared_with_is_scored(
    tmp_path: Path, mode: str, params: Any, works: bool
) -> None:
    with Recorder(tmp_path, RUN) as recorder:
        found = Probe(Engine(mode), recorder, share=1.0).look([answered()] * 2, step=1, params=params)
    assert (found is not None) == works


def test_without_log_probs_nothing_is_scored(tmp_path: Path) -> None:
    with Recorder(tmp_path, RUN) as recorder:
        assert Probe(Engine(), recorder, share=1.0).look([answered(logprobs=False)] * 2, step=1, params=PLAIN) is None


def test_an_engine_that_fails_is_counted_and_raises_nothing(tmp_path: Path) -> None:
    engine = Engine()
    engine.broken = True
    with Recorder(tmp_path, RUN) as recorder:
        assert Probe(engine, recorder, share=1.0).look([answered()] * 2, step=1, params=PLAIN) is None
    problems = [
        row for row in spooled(tmp_path, RUN, "health") if row["severity"] == "error" or "probe" in row["message"]
    ]
    assert any("the engine died" in row["message"] for row in problems), json.dumps(problems, default=str)
