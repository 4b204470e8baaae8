"""The plugin inside real vLLM engines on a CUDA device, with CUDA graphs, compiled kernels and asynchronous scheduling: `make campaign NAME=gpu`.

Engines start beside one another, as many as the processors allow (`ENGINES_AT_ONCE`), and each scenario runs once however many cases look at it.
`ENGINE_CASES_ON=cpu` rehearses on the engine's CPU build what it can. With `ENGINE_CASES_FIGURES=FILE` measured figures are added to that file, a
line of JSON each, as they come. `ENGINE_CASES_ENGINE` has settings of every engine, as a JSON object. `ENGINE_CASES_AFTER=FILE`: whoever runs something
else on the device makes that file when it has ended, and batches are timed from then on. `ENGINE_CASES_LIMIT`: seconds that a scenario may take, and an
engine to start.
"""

from __future__ import annotations

import json
import os
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from engine_process import ENGINE_ENVIRONMENT, by_sample, ingested, rollouts, spans, spooled

from logprobe.collectors.fingerprint import Fingerprint, fingerprint
from logprobe.collectors.vllm.ids import prompt_hash

HERE = Path(__file__).parent
CPU = os.environ.get("ENGINE_CASES_ON") == "cpu"
pytestmark = [
    pytest.mark.timeout(900),
    pytest.mark.skipif(find_spec("vllm") is None, reason="no vllm in this environment"),
    pytest.mark.skipif(not CPU and not torch.cuda.is_available(), reason="no CUDA device"),
]
RUN = "a run"
AT_ONCE = int(os.environ.get("ENGINES_AT_ONCE", "0")) or max(1, (os.cpu_count() or 2) // 2)
# Seconds of a scenario once it has started.
LIMIT = int(os.environ.get("ENGINE_CASES_LIMIT", "0")) or (800 if CPU else 240)

# Qwen3 1.7B, whose weights are made up when it is loaded
SIZED = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "dtype": "bfloat16",
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 151936,
    "max_position_embeddings": 4096,
    "tie_word_embeddings": True,
}
if CPU:
    SIZED |= {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 3, "vocab_size": 4096}


@dataclass(frozen=True)
class Variant:
    """How an engine differs from production's defaults, and what it then really has."""

    engine: dict[str, Any] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)
    backend: str = "FLASH_ATTN"
    caches: tuple[str, ...] = ("bfloat16",)
    weights: str = "torch.bfloat16"
    runner: str = "vllm.v1.worker.gpu.model_runner.GPUModelRunner"
    graphs: bool = True


EAGER = {"enforce_eager": True}
VARIANTS = {
    "defaults": Variant(),
    "eager": Variant(EAGER, graphs=False),
    "preempted": Variant({"num_gpu_blocks_override": 300, "max_num_seqs": 96}),
    "processed": Variant({"logprobs_mode": "processed_logprobs"} | EAGER, graphs=False),
    "first runner": Variant(
        environment={"VLLM_USE_V2_MODEL_RUNNER": "0"}, runner="vllm.v1.worker.gpu_model_runner.GPUModelRunner"
    ),
    "one process": Variant(EAGER, {"VLLM_ENABLE_V1_MULTIPROCESSING": "0"}, graphs=False),
    "triton": Variant(
        {"attention_backend": "TRITON_ATTN", "dtype": "float16"} | EAGER,
        backend="TRITON_ATTN",
        caches=("float16",),
        weights="torch.float16",
        graphs=False,
    ),
    "fp8 cache": Variant({"kv_cache_dtype": "fp8"} | EAGER, caches=("uint8", "float8_e4m3fn"), graphs=False),
    "fp8 weights": Variant({"quantization": "fp8"} | EAGER, weights="torch.float8_e4m3fn", graphs=False),
}
if CPU:  # what it can show is that the cases hold what they say, not these engines
    TRAITS = {"backend": "CPU_ATTN", "runner": "vllm.v1.worker.cpu_model_runner.CPUModelRunner", "graphs": False}
    VARIANTS = {
        "defaults": Variant(**TRAITS),
        "preempted": Variant({"num_gpu_blocks_override": 40, "block_size": 32, "max_num_seqs": 16}, **TRAITS),
        "processed": Variant({"logprobs_mode": "processed_logprobs"}, **TRAITS),
    }
REQUESTS, TOKENS = (24, 16) if CPU else (192, 90)


def environment(**more: str) -> dict[str, str]:
    """Of a process with an engine."""
    inherited = {key: value for key, value in os.environ.items() if not key.startswith(("LOGPROBE_", "VLLM_"))}
    paths = [str(HERE), str(HERE.parent / "e2e"), *filter(None, [os.environ.get("PYTHONPATH")])]
    common = {
        "PYTHONPATH": os.pathsep.join(paths),
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_LOGGING_LEVEL": "WARNING",
        "VLLM_HOST_IP": "127.0.0.1",
        "TOKENIZERS_PARALLELISM": "false",
    }
    if find_spec("flashinfer") is None:
        common["VLLM_USE_FLASHINFER_SAMPLER"] = "0"
    return {**inherited, **(ENGINE_ENVIRONMENT if CPU else {}), **common, **more}


def command(scenario: str, models: Path, answer: Path, given: dict[str, Any]) -> list[str]:
    return [sys.executable, str(HERE / "engine_program.py"), scenario, str(models), str(answer), json.dumps(given)]


class Engines:
    """Runs scenarios beside one another; each once."""

    def __init__(self, folder: Path, models: Path) -> None:
        self.folder, self.models = folder, models
        self._pool = ThreadPoolExecutor(AT_ONCE)
        self._running: dict[str, Future[Any]] = {}

    def begin(self, name: str, scenario: str, given: dict[str, Any] | None = None, **variables: str) -> None:
        """Starts a scenario unless it has been."""
        if name not in self._running:
            self._running[name] = self._pool.submit(self._run, name, scenario, given or {}, variables)

    def told(self, name: str) -> tuple[Path, Any]:
        """The home of a scenario, and what it returned."""
        return self.folder / name / "home", self._running[name].result()

    def _run(self, name: str, scenario: str, given: dict[str, Any], variables: dict[str, str]) -> Any:
        folder = self.folder / name
        folder.mkdir(parents=True)
        began = time.monotonic()
        own = {"LOGPROBE_HOME": str(folder / "home"), "LOGPROBE_RUN": RUN}
        with (folder / "log").open("wb") as log:
            process = subprocess.Popen(
                command(
                    scenario, self.models / ("sized" if scenario == "reading" else "."), folder / "answer.json", given
                ),
                env=environment(**own, **variables),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            try:
                code = process.wait(LIMIT)
            finally:
                end(process)
        figure(f"scenario {name}", seconds=round(time.monotonic() - began, 1), code=code)
        if code:
            raise AssertionError(f"{name} ended with {code}:\n{(folder / 'log').read_text('utf-8', 'replace')[-6000:]}")
        return json.loads((folder / "answer.json").read_text("utf-8"))


def end(process: subprocess.Popen[Any]) -> None:
    """Ends a process and the engines it started."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


_WRITING = threading.Lock()


def figure(name: str, **values: Any) -> None:
    """Leaves word of what was measured."""
    line = json.dumps({"figure": name, **values})
    print(line)
    if path := os.environ.get("ENGINE_CASES_FIGURES"):
        with _WRITING, Path(path).open("a", encoding="utf-8") as file:
            file.write(line + "\n")


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two checkpoints of one policy of a few layers, ``old`` and ``new`` (a training step later)."""
    from tiny_model import make_tiny_model

    folder = tmp_path_factory.mktemp("models")
    size = {"hidden": 64, "layers": 2} if CPU else {"hidden": 256, "layers": 4}
    make_tiny_model(folder / "old", **size)
    make_tiny_model(folder / "new", seed=1, like=folder / "old", **size)
    (folder / "sized" / "old").mkdir(parents=True)
    (folder / "sized" / "old" / "config.json").write_text(json.dumps(SIZED))
    return folder


@pytest.fixture(scope="session")
def engines(tmp_path_factory: pytest.TempPathFactory, models: Path, request: pytest.FixtureRequest) -> Engines:
    """All scenarios that the chosen cases look at, started in the order of the cases."""
    made = Engines(tmp_path_factory.mktemp("engines"), models)
    for item in request.session.items:
        for begin in getattr(item.function, "begins", ()):
            begin(made, getattr(item, "callspec", None))
    return made


def looks_at(*begins: Callable[[Engines, Any], None]) -> Callable[[Any], Any]:
    """Scenarios that a case needs; those of all chosen cases run beside one another."""

    def marked(case: Any) -> Any:
        case.begins = begins
        return case

    return marked


def assert_as_told(recorded: dict[str, Any], told: dict[str, Any], *, siblings: bool = False) -> None:
    """A record equals what the engine's caller got, bit by bit. Of several answers to one request vLLM says only once what was cached."""
    assert recorded["token_ids"] == told["token_ids"]
    assert recorded["logprobs"] == told["logprobs"]
    assert recorded["finish_reason"] == told["finish_reason"]
    assert recorded["prompt_length"] == len(told["prompt_token_ids"])
    assert recorded["prompt_hash"] == prompt_hash(told["prompt_token_ids"])
    assert siblings or recorded["cached_prefix_tokens"] == told["cached_prefix_tokens"]


def assert_begins_as_told(recorded: dict[str, Any], told: dict[str, Any], **options: Any) -> None:
    """As `assert_as_told` of a request with a stop string: to the engine it is an abort, before which it may sample on."""
    length = len(told["token_ids"])
    lists = {name: recorded[name][:length] for name in ("token_ids", "logprobs")}
    assert_as_told({**recorded, **lists, "finish_reason": told["finish_reason"]}, told, **options)


def assert_healthy(home: Path, *allowed: str) -> None:
    """The plugin has nothing to complain of."""
    events = [row for row in spooled(home, RUN, "health", "vllm_plugin") if row["severity"] not in {"info", None}]
    assert [(row["event"], row["message"]) for row in events if row["event"] not in allowed] == []


# --- What is recorded is what the caller was told ---


def of_variant(engines: Engines, call: Any) -> None:
    variant = VARIANTS[call.params["variant"]]
    given = {"engine": variant.engine, "requests": REQUESTS, "tokens": TOKENS}
    settings = {"LOGPROBE_RECORD": "harmless=logprobe_look", **variant.environment}
    engines.begin(call.params["variant"], "sampled", given, **settings)


@pytest.mark.parametrize("variant", VARIANTS)
@looks_at(of_variant)
def test_records_what_the_caller_was_told(engines: Engines, variant: str) -> None:
    home, told = engines.told(variant)
    recorded = by_sample(rollouts(home, RUN))
    assert recorded.keys() == {row["sample_id"] for row in told["rows"]}
    names = recorded.keys()
    for row in told["rows"]:
        name = row["sample_id"]
        as_told = assert_begins_as_told if row["stop_string"] else assert_as_told
        as_told(recorded[name], row, siblings=f"{name.rpartition('/')[0]}/1" in names)
        assert spans(recorded[name]) == [(0, len(recorded[name]["token_ids"]), "0")]
    tokens = sum(len(row["token_ids"]) for row in told["rows"])
    distinct = len({value for row in told["rows"] for value in row["logprobs"]})
    cached = sum(bool(row["cached_prefix_tokens"]) for row in told["rows"])
    figure(
        f"as told: {variant}",
        tokens=tokens,
        distinct=distinct,
        cached=cached,
        preemptions=told["preemptions"],
        **told["look"],
    )
    assert tokens >= (300 if CPU else 10_000)
    assert distinct > tokens / 4, "log-probs that are all alike would show nothing"
    if variant == "preempted":
        assert told["preemptions"] > 0, "the scenario must preempt"
    assert_healthy(home)


@pytest.mark.parametrize("variant", VARIANTS)
@looks_at(of_variant)
def test_the_configuration_is_what_the_engine_really_has(engines: Engines, variant: str) -> None:
    home, told = engines.told(variant)
    [document] = [json.loads(row["document"]) for row in spooled(home, RUN, "config") if row["kind"] == "engine_config"]
    summary, effective, look, meant = document["summary"], document["effective"], told["look"], VARIANTS[variant]
    figure(
        f"configuration: {variant}",
        effective=effective,
        compilation=[summary["compilation_mode"], summary["cudagraph_mode"]],
    )
    assert look["runner"] == meant.runner
    assert look["backends"] in ([meant.backend], [])
    assert effective["attention_backend"] == summary["attention_backend"] == meant.backend
    assert effective["device"] == look["device"]
    assert meant.weights in look["weights"]
    assert effective["weight_dtypes"] == ", ".join(sorted(dtype.removeprefix("torch.") for dtype in look["weights"]))
    assert effective["kv_cache_dtype"] in meant.caches
    assert set(look["caches"]) <= {f"torch.{name}" for name in meant.caches}
    assert summary["kv_cache_dtype"] == meant.engine.get("kv_cache_dtype", "auto")
    assert summary["quantization"] == meant.engine.get("quantization")
    assert summary["dtype"] == meant.engine.get("dtype", "bfloat16")
    assert summary["logprobs_mode"] == meant.engine.get("logprobs_mode", "raw_logprobs")
    assert summary["enforce_eager"] is (CPU or meant.engine.get("enforce_eager", False))
    if not CPU:
        assert (effective["cudagraph_mode"] != "none") is meant.graphs
        if look["full_graphs"] is not None:
            assert (look["full_graphs"] > 0) is meant.graphs
    assert document["arguments"].items() >= {k: v for k, v in meant.engine.items() if k != "attention_backend"}.items()


def of_stepwise(engines: Engines, _: Any) -> None:
    given = {
        "scenario": "stepwise",
        "engine": {"max_num_batched_tokens": 64, "async_scheduling": False, "dtype": "bfloat16", "enforce_eager": True},
    }
    engines.begin("stepwise", "shared", given, VLLM_ENABLE_V1_MULTIPROCESSING="0")


@looks_at(of_stepwise)
def test_one_step_at_a_time(engines: Engines) -> None:
    """As `test_vllm_engine`: marks in mid-request, aborts, preemption, reloads that nobody announced."""
    home, told = engines.told("stepwise")
    recorded = by_sample(rollouts(home, RUN))
    assert recorded.keys() == {row["sample_id"] for row in told["rows"]} | {"aborted/0"}
    for row in told["rows"]:
        assert_as_told(
            recorded[row["sample_id"]], row | {"logprobs": row["logprobs"] or [None] * len(row["token_ids"])}
        )
    assert told["preemptions"] > 0
    assert recorded["cached/0"]["cached_prefix_tokens"] == 128
    assert spans(recorded["spanned/0"]) == [(0, 5, "0"), (5, 12, "1")]
    assert (recorded["aborted/0"]["finish_reason"], len(recorded["aborted/0"]["token_ids"])) == ("abort", 4)
    assert spans(recorded["unmarked/0"]) == [(0, 4, None)]
    assert spans(recorded["marked/0"]) == [(0, 4, "3")]


# --- Weights that change ---


def of_in_flight(engines: Engines, _: Any) -> None:
    engines.begin(
        "in flight", "shared", {"scenario": "in_flight", "engine": {"dtype": "bfloat16", "enforce_eager": CPU}}
    )


@looks_at(of_in_flight)
def test_an_update_in_flight(engines: Engines) -> None:
    home, told = engines.told("in flight")
    recorded = by_sample(rollouts(home, RUN))
    for row in told["rows"]:
        assert_as_told(recorded[row["sample_id"]], row)
    for row in told["stopped"]:
        assert_begins_as_told(recorded[row["sample_id"]], row)
    load, mark = told["before_load"], told["before_mark"]
    assert spans(recorded["in-flight/0"]) == [(0, load, "5"), (load, mark, "6"), (mark, 400, "7")]
    for name, token_ids, logprobs in told["served"]:
        assert (recorded[name]["token_ids"], recorded[name]["logprobs"]) == (token_ids, logprobs)


def of_updates(engines: Engines, _: Any) -> None:
    engines.begin("updates", "updates", {"requests": 4, "tokens": 80} if CPU else {"requests": 64, "tokens": 400})


@looks_at(of_updates)
def test_every_token_of_a_batch_has_the_version_that_vllm_says(engines: Engines) -> None:
    """vLLM's own account of each request, since 0.32, through two updates while it runs."""
    home, told = engines.told("updates")
    recorded = by_sample(rollouts(home, RUN))
    for row in told["rows"]:
        assert_as_told(recorded[row["sample_id"]], row)
        assert spans(recorded[row["sample_id"]]) == [tuple(span) for span in row["versions"]]
    versions = {tuple(version for _, _, version in row["versions"]) for row in told["rows"]}
    figure("updates", tokens=sum(len(row["token_ids"]) for row in told["rows"]), versions=sorted(versions))
    assert ("5", "6", "7") in versions, "the updates must come while requests run"


def of_asleep(engines: Engines, _: Any) -> None:
    engines.begin("asleep", "asleep")


def of_worker(home: Path) -> list[tuple[str | None, str, Fingerprint]]:
    """Version, reason and fingerprint of what was read of the weights, in order."""
    layouts = {row["fingerprint"]: json.loads(row["document"]) for row in spooled(home, RUN, "config")}
    with ingested(home) as store:
        rows = store.query("SELECT * FROM fingerprints WHERE source = 'worker' ORDER BY applied_at").to_pylist()
    return [
        (
            row["version"],
            row["reason"],
            Fingerprint(tuple(layouts[row["layout"]]["tensors"]), np.array(row["tensor_hashes"], np.uint32)),
        )
        for row in rows
    ]


def checkpoint(folder: Path) -> dict[str, int]:
    """Hashes of a checkpoint, as a trainer on the host computes them."""
    from safetensors.torch import load_file

    found = fingerprint(load_file(folder / "model.safetensors"))
    return dict(zip(found.keys, found.hashes.tolist(), strict=True))


def differing(read: Fingerprint, trainer: dict[str, int]) -> set[str]:
    """Tensors whose hash is another one than the trainer's; all of the engine's have to be the trainer's too."""
    assert len(read.keys) > 10
    return {
        key.split(" ")[0] for key, value in zip(read.keys, read.hashes.tolist(), strict=True) if trainer[key] != value
    }


@pytest.mark.skipif(CPU, reason="vLLM's CPU engine has no sleep")
@looks_at(of_asleep)
def test_an_engine_that_sleeps(engines: Engines, models: Path) -> None:
    home, told = engines.told("asleep")
    recorded = by_sample(rollouts(home, RUN))
    for name, version in (("before", "0"), ("same", "0"), ("unmarked", None), ("marked", "3")):
        for row in told[name]:
            assert_as_told(recorded[row["sample_id"]], row)
            assert spans(recorded[row["sample_id"]]) == [(0, 40, version)], name
    readings = of_worker(home)
    figure("asleep", readings=[(version, reason) for version, reason, _ in readings])
    assert readings
    for version, _, read in readings:
        if version is not None:
            assert differing(read, checkpoint(models / ("old" if version == "0" else "new"))) == set()
    assert readings[-1][0] == "3"


def of_fingerprints(engines: Engines, _: Any) -> None:
    engines.begin("fingerprints", "fingerprints", VLLM_ENABLE_V1_MULTIPROCESSING="0")


@looks_at(of_fingerprints)
def test_fingerprints_are_those_of_the_trainer_and_see_one_changed_value(engines: Engines, models: Path) -> None:
    home, told = engines.told("fingerprints")
    assert told["flushed"]
    assert told["device"] == ("cpu" if CPU else "cuda:0")
    readings = [
        (version, reason, differing(read, checkpoint(models / "old"))) for version, reason, read in of_worker(home)
    ]
    figure("fingerprints", readings=[(version, reason, sorted(changed)) for version, reason, changed in readings])
    assert readings[0][0] == "0"
    assert readings[0][2] == set()
    assert readings[-1] == (None, "unannounced", {told["changed"]})


def of_reading(engines: Engines, _: Any) -> None:
    engines.begin("reading", "reading", VLLM_ENABLE_V1_MULTIPROCESSING="0")


@looks_at(of_reading)
def test_what_a_fingerprint_costs(engines: Engines) -> None:
    _, told = engines.told("reading")
    figure("fingerprint", **told)
    if not CPU:
        assert told["launch_ms"] < 50


# --- What it costs ---


class Batches:
    """An engine that runs a batch when it is told to; ended when it does not answer."""

    def __init__(self, folder: Path, models: Path, given: dict[str, Any], **variables: str) -> None:
        folder.mkdir(parents=True)
        self._log = folder / "log"
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                command("batches", models, folder / "answer.json", given),
                env=environment(**variables),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,
            )
        self._patience = self._patient()
        self._is_ready = False

    def ready(self) -> None:
        """Waits for it."""
        if not self._is_ready:
            self._line("READY")
            self._is_ready = True

    def seconds(self) -> float:
        """Of one batch."""
        self._patience = self._patient()
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return float(self._line("SECONDS").split()[1])

    def close(self) -> None:
        self._patience.cancel()
        end(self.process)
        self.process.stdin.close()
        self.process.stdout.close()

    def _patient(self) -> threading.Timer:
        """Ends the engine after a while, unless it is cancelled."""
        timer = threading.Timer(LIMIT, end, [self.process])
        timer.daemon = True
        timer.start()
        return timer

    def _line(self, word: str) -> str:
        for line in self.process.stdout:
            if line.startswith(word):
                self._patience.cancel()
                return line
        raise AssertionError(f"the engine ended:\n{self._log.read_text('utf-8', 'replace')[-6000:]}")


class Pair:
    """Two engines, without and with the plugin, that start at once and are there all the time."""

    REQUESTS, TOKENS = (16, 16) if CPU else (256, 128)

    def __init__(self, models: Path, folder: Path, engine: dict[str, Any]) -> None:
        given = {"engine": engine, "requests": self.REQUESTS, "tokens": self.TOKENS}
        self.home = folder / "home"
        watched = {"LOGPROBE_HOME": str(self.home), "LOGPROBE_RUN": RUN}
        self._both = [
            Batches(folder / "without", models, given),
            Batches(folder / "with", models, given, **watched),
        ]

    def ready(self) -> None:
        for engine in self._both:
            engine.ready()

    def in_turns(self, pairs: int) -> dict[str, Any]:
        """Throughput of both, from batches in turns."""
        self.ready()
        for engine in self._both:  # warm
            engine.seconds()
        seconds: list[list[float]] = [[], []]
        for number in range(pairs):
            for index in (0, 1) if number % 2 else (1, 0):
                seconds[index].append(self._both[index].seconds())
        ratios = [with_it / without for without, with_it in zip(*seconds, strict=True)]
        tokens = self.REQUESTS * self.TOKENS
        return {
            "tokens_per_s_without": round(tokens / statistics.median(seconds[0])),
            "tokens_per_s_with": round(tokens / statistics.median(seconds[1])),
            "time_ratio": round(statistics.median(ratios), 4),
            "at_least": round(sorted(ratios)[max(0, (pairs - 8) // 2)], 4),  # of 15 pairs: of the median, at 96 %
            "ratios": [round(ratio, 4) for ratio in ratios],
            "recorded": len(spooled(self.home, RUN, "rollout")),
        }

    def close(self) -> None:
        for engine in self._both:
            engine.close()


@pytest.fixture(scope="session", autouse=True)
def pairs(
    tmp_path_factory: pytest.TempPathFactory, models: Path, request: pytest.FixtureRequest
) -> Iterator[dict[str, Pair]]:
    """Engines of every chosen size: they start before all else and beside one another, as a large one takes its time."""
    dummy = {
        "load_format": "dummy",
        "skip_tokenizer_init": True,
        **({} if CPU else {"kv_cache_memory_bytes": 16 << 30}),
    }
    kinds = {"1.7B": (models / "sized", dummy), "tiny": (models, {})}
    chosen = {
        item.callspec.params["size"]
        for item in request.session.items
        if getattr(item, "originalname", None) == test_throughput_with_and_without.__name__
    }
    folder = tmp_path_factory.mktemp("pairs")
    made = {size: Pair(kinds[size][0], folder / size, kinds[size][1]) for size in kinds if size in chosen}
    yield made
    for pair in made.values():
        pair.close()


def quiet(engines: Engines, pairs: dict[str, Pair]) -> None:
    """Waits until nothing else runs: every scenario has ended, every engine that is timed is there."""
    for name in list(engines._running):
        engines._running[name].exception()
    began = time.monotonic()
    for pair in pairs.values():
        with suppress(AssertionError):  # those whose engine it is say so
            pair.ready()
    if path := os.environ.get("ENGINE_CASES_AFTER"):
        while not Path(path).exists() and time.monotonic() < began + LIMIT:
            time.sleep(0.1)


@pytest.mark.parametrize("size", ["1.7B", "tiny"])
def test_throughput_with_and_without(engines: Engines, pairs: dict[str, Pair], size: str) -> None:
    """256 requests decode together. Measured while nothing else runs."""
    quiet(engines, pairs)
    pair = pairs.pop(size)
    try:
        found = pair.in_turns(2 if CPU else 15)
    finally:
        pair.close()
    figure(f"throughput: {size}", **found)
    assert found["recorded"] > 0
    if not CPU:
        assert found["at_least"] < (1.03 if size == "1.7B" else 1.15)  # single pairs differ by a fifth
