"""A random schedule of everything that happens to an engine's weights: versions are right, or unknown. See `engine_process`.

python schedule_scenario.py schedule MODELS
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from engine_scenarios import Driver, engine_of, flushed, torch_logprobs
from tiny_model import make_merged, make_tiny_adapter

CHECKPOINTS = ("old", "new")
ADAPTERS = (0, 1, 2)  # seeds
Weights = tuple[str, int | None]  # checkpoint and adapter
SAME = 1e-3  # an fp32 engine and torch differ by 1e-6; two checkpoints by 0.05 for a token in the middle


def schedule(models: Path, tokens: int = 26_000) -> Any:
    """Random events until enough tokens were sampled; → what was told to the callers, and which checkpoint each version names."""

    more = {"weight_transfer_config": {"backend": transfer_of_files()}} if has_versions() else {}
    llm = engine_of(models, max_num_seqs=32, enable_lora=True, max_loras=2, max_lora_rank=8, **more)
    play = Play(llm, models, random.Random(20))
    events = [play.generate] * 4 + [
        play.interrupt,
        play.mark,
        play.load_marked,
        play.load_unmarked,
        play.load_labelled,
        *([play.load_by_protocol] if has_versions() else []),
        play.load_while_running,
        play.load_while_running,
        play.use_adapter,
        play.swap_adapter,
        play.swap_adapter,
        play.pause,
    ]
    first = play.random.sample(events, len(events))  # each happens at least once
    while first or play.tokens < tokens:
        (first.pop() if first else play.random.choice(events))()
    play.driver.finish()
    return {
        "flushed": flushed(),
        "has_versions": has_versions(),
        "events": play.events,
        "wrong": play.judge(),
    }


def has_versions() -> bool:
    """Whether this vLLM's update of weights takes a version: 0.28 and later."""
    from inspect import signature

    from vllm import LLM

    finish = getattr(LLM, "finish_weight_update", None)
    return finish is not None and "weight_version" in signature(finish).parameters


def transfer_of_files() -> str:
    """Register a transfer of weights that reads half a checkpoint at a time, where others use NCCL. Return its name."""
    from dataclasses import dataclass

    from safetensors.torch import load_file
    from vllm.distributed.weight_transfer.base import WeightTransferEngine
    from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory
    from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload

    @dataclass
    class Nothing:
        pass

    @dataclass
    class Half:
        path: str
        part: int

    class Files(WeightTransferEngine):
        init_info_cls, update_info_cls = Nothing, Half

        def init_transfer_engine(self, init_info: Nothing) -> None:
            pass

        def start_weight_update(self) -> None:
            initialize_layerwise_reload(self.model)

        def update_weights(self, update_info: dict[str, Any]) -> None:
            self.receive_weights(self.parse_update_info(update_info))  # on a CPU there is nothing to wait for

        def receive_weights(self, update_info: Half) -> None:
            tensors = sorted(load_file(update_info.path).items())
            half = len(tensors) // 2
            self.model.load_weights(iter(tensors[half:] if update_info.part else tensors[:half]))

        def finish_weight_update(self) -> None:
            finalize_layerwise_reload(self.model, self.model_config)

        def shutdown(self) -> None:
            pass

    if "files" not in WeightTransferEngineFactory._registry:
        WeightTransferEngineFactory.register_engine("files", Files)
    return "files"


class Play:
    """One engine, what its weights are, and which versions were said of them."""

    def __init__(self, llm: Any, models: Path, rng: random.Random) -> None:
        self.llm, self.models, self.random = llm, models, rng
        self.driver = Driver(llm.llm_engine)
        self.core = llm.llm_engine.engine_core.engine_core
        self.checkpoint: str = "old"
        self.adapter = 0  # which of `ADAPTERS` is called "red"
        self.swaps = 1
        self.weights_of: dict[str, Weights] = {}  # version → weights
        self.adapters = [make_tiny_adapter(models / f"red-{seed}", seed=seed) for seed in ADAPTERS]
        self.prompts: dict[str, list[int]] = {}
        self.tokens = 0
        self.events: dict[str, int] = {}
        self.unsaid = {
            "base": "before the first name",
            "red": "an adapter that nobody named",
        }  # of the weights ("base", or an adapter's name) that nobody has named: why
        self.why: dict[str, str] = {}  # request → why its version cannot be known, as of its start

    def count(self, event: str) -> None:
        self.events[event] = self.events.get(event, 0) + 1

    def add(self, requests: int, tokens: int, **more: Any) -> list[str]:
        from vllm import SamplingParams

        names = [f"r{len(self.prompts) + number}" for number in range(requests)]
        for name in names:
            self.prompts[name] = [self.random.randrange(2, 500) for _ in range(self.random.randrange(4, 70))]
            params = SamplingParams(temperature=1.0, max_tokens=tokens, logprobs=0, ignore_eos=True)
            self.driver.add(name, params, {"prompt_token_ids": self.prompts[name]}, **more)
            used = more.get("lora_request")
            self.why[name] = self.unsaid.get(
                used.lora_name if used else "base", "named when it began: changed while it ran, or not certain"
            )
        self.tokens += requests * tokens
        return names

    def generate(self) -> None:
        self.count("generate")
        self.add(16, self.random.randrange(8, 60))
        self.driver.finish()

    def interrupt(self) -> None:
        """Abort in the middle: what was sampled is recorded."""
        self.count("interrupt")
        names = self.add(8, 40)
        for _ in range(self.random.randrange(1, 30)):
            self.driver.step()
        self.llm.llm_engine.abort_request(names)
        self.driver.finish()

    def pause(self) -> None:
        """A pause in one of the modes; the weights stay, and get another name while requests are in flight."""
        mode = self.random.choice(["keep", "abort"])
        self.count(f"pause {mode}")
        names = self.add(8, 30)
        for _ in range(self.random.randrange(1, 20)):
            self.driver.step()
        self.core.pause_scheduler(mode)
        if mode == "abort":
            self.llm.llm_engine.abort_request(names)  # the front-end in this process is not told by the core
        self.mark()
        self.core.resume_scheduler()
        self.driver.finish()

    def version(self, adapter: int | None = None) -> str:
        name = str(len(self.weights_of))
        self.weights_of[name] = (self.checkpoint, adapter)
        return name

    def mark(self) -> None:
        from logprobe.collectors import weights

        self.count("mark")
        weights.mark(self.version())
        self.unsaid.pop("base", None)

    def use_adapter(self) -> None:
        from vllm.lora.request import LoRARequest

        self.count("adapter")
        request = LoRARequest("red", self.swaps, str(self.adapters[self.adapter]))
        self.add(8, self.random.randrange(8, 40), lora_request=request)
        self.driver.finish()

    def swap_adapter(self) -> None:
        """Another adapter under the same name, with or without a mark; a mark is about the one that is used next."""
        from logprobe.collectors import weights

        self.adapter = self.random.choice(ADAPTERS)
        self.swaps += 1
        if self.random.random() < 0.5:
            self.count("swap marked")
            weights.mark(self.version(self.adapter), adapter="red")
            self.unsaid.pop("red", None)
        else:
            self.count("swap unmarked")
            self.unsaid["red"] = "an adapter that nobody named"
        self.use_adapter()
        if self.random.random() < 0.5:
            self.count("adapter marked later")
            weights.mark(self.version(self.adapter), adapter="red")
            self.unsaid.pop("red", None)
            self.use_adapter()

    def load_while_running(self) -> None:
        """Other weights under requests, which are computed again from their first token: so no key or value of the old ones is left."""
        from vllm.lora.request import LoRARequest

        self.count("load while running")
        # Not both kinds in one batch: this vLLM's CPU backend applies the adapter to the requests without one, too.
        request = LoRARequest("red", self.swaps, str(self.adapters[self.adapter]))
        self.add(9, 40, lora_request=self.random.choice([None, request]))
        for _ in range(self.random.randrange(1, 30)):
            self.driver.step()
        self.random.choice(self.loads())()
        self.driver.finish()

    def load(self, how: str) -> None:
        """Other weights, and no cached key or value of the old ones is left."""
        self.checkpoint = self.random.choice(CHECKPOINTS)
        path = {"weights_path": str(self.models / self.checkpoint)}
        worker = self.llm.llm_engine.model_executor.driver_worker.worker
        ways: dict[str, Callable[[], Any]] = {
            "rpc": lambda: self.llm.collective_rpc("reload_weights", kwargs=path),
            "a function": lambda: self.llm.collective_rpc(lambda worker: worker.reload_weights(**path)),
            "the executor": lambda: self.llm.llm_engine.model_executor.collective_rpc("reload_weights", kwargs=path),
            "the worker": lambda: worker.reload_weights(**path),
            "the model's runner": lambda: self.llm.apply_model(lambda _: worker.model_runner.reload_weights(**path)),
        }
        way = self.random.choice(list(ways))
        self.count(f"load {how}")
        self.count(f"by {way}")
        ways[way]()
        self.unsaid["base"] = "loaded, and nobody named it"
        assert self.llm.reset_prefix_cache(reset_running_requests=True)

    def load_marked(self) -> None:
        self.load("marked")
        self.mark()

    def load_unmarked(self) -> None:
        self.load("unmarked")

    def load_labelled(self) -> None:
        self.load("labelled")
        self.core.set_weight_version(self.version())
        self.unsaid.pop("base", None)

    def loads(self) -> list[Callable[[], None]]:
        protocol = [self.load_by_protocol] if has_versions() else []
        return [self.load_marked, self.load_unmarked, self.load_labelled, *protocol]

    def load_by_protocol(self) -> None:
        """vLLM's four phases, whose last names the version; or, where it names none, nobody knows."""
        self.checkpoint = self.random.choice(CHECKPOINTS)
        named = self.random.random() < 0.8
        self.count("load by protocol" if named else "load by protocol, no version")
        self.llm.init_weight_transfer_engine({"init_info": {}})
        self.llm.start_weight_update()
        for part in (0, 1):
            path = str(self.models / self.checkpoint / "model.safetensors")
            self.llm.update_weights({"update_info": {"path": path, "part": part}})
        self.llm.finish_weight_update(*([self.version()] if named else []))
        self.unsaid.pop("base", None)
        if not named:
            self.unsaid["base"] = "loaded, and nobody named it"
        assert self.llm.reset_prefix_cache(reset_running_requests=True)

    def judge(self) -> dict[str, Any]:
        """Recorded log-probs against those recomputed under the checkpoint that the version in the store names."""
        import os

        from engine_process import rollouts

        flushed()
        rows = rollouts(Path(os.environ["LOGPROBE_HOME"]), os.environ["LOGPROBE_RUN"])
        rows = [row for row in rows if row["token_ids"] and row["sample_id"][:-2] in self.prompts]
        asked = [
            {"prompt_token_ids": self.prompts[row["sample_id"][:-2]], "token_ids": row["token_ids"]} for row in rows
        ]
        named = [{span["version"] for span in row["spans"]} - {None} for row in rows]
        # Of each row the weights that its versions name, and as many others, to see that the two can be told apart.
        wanted = [{of for name in names for of in both(self.weights_of[name])} for names in named]
        truth: dict[tuple[int, Weights], list[float]] = {}
        for weights in sorted({each for some in wanted for each in some}, key=str):
            numbers = [number for number, some in enumerate(wanted) if weights in some]
            found = torch_logprobs(self.folder_of(weights), [asked[number] for number in numbers], 1.0)
            truth |= {(number, weights): values for number, values in zip(numbers, found, strict=True)}
        counts = {"right": 0, "wrong": 0, "unknown": 0, "decisive": 0, "of adapters": 0}
        for number, row in enumerate(rows):
            for span in row["spans"]:
                if span["version"] is None:
                    counts["unknown"] += span["end"] - span["start"]
                    why = f"unknown: {self.why[row['sample_id'][:-2]]}"
                    counts[why] = counts.get(why, 0) + span["end"] - span["start"]
                    continue
                ours, other = both(self.weights_of[span["version"]])
                if (ours[1] is None) != (row["adapter"] is None):
                    counts["wrong"] += span["end"] - span["start"]
                    continue
                counts["of adapters"] += (span["end"] - span["start"]) * (ours[1] is not None)
                for place in range(span["start"], span["end"]):
                    off, away = (abs(truth[number, of][place] - row["logprobs"][place]) for of in (ours, other))
                    counts["right" if off < SAME else "wrong"] += 1
                    counts["decisive"] += max(off, away) > 2 * SAME
        return counts

    def folder_of(self, weights: Weights) -> Path:
        """Where these weights lie as one checkpoint."""
        checkpoint, adapter = weights
        if adapter is None:
            return self.models / checkpoint
        folder = self.models / f"{checkpoint}-red-{adapter}"
        return folder if folder.exists() else make_merged(folder, self.models / checkpoint, self.adapters[adapter])


def both(weights: Weights) -> tuple[Weights, Weights]:
    """Weights, and the other checkpoint with the same adapter."""
    checkpoint, adapter = weights
    return weights, (CHECKPOINTS[1 - CHECKPOINTS.index(checkpoint)], adapter)


if __name__ == "__main__":
    print("RESULT", json.dumps(globals()[sys.argv[1]](Path(sys.argv[2]), *map(int, sys.argv[3:]))))
