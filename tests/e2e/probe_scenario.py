"""The live probe on ``vllm serve``: printed looks, a policy that moved on, then a prefix cache that a weight update left as it was, and no
engine at all. See `engine_process`.

python probe_scenario.py probing MODELS
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from agent_scenario import SAMPLING, Client, serving
from engine_scenarios import engine_arguments, prompts_of, torch_logprobs
from processes import service

REPEATED, FRESH, LENGTH, ANSWER = 4, 4, 40, 60
SETTINGS = "probe: [{{url: '{url}', every: 1, share: 1, sequences: 8, running: {running}}}]\n"
LOOKS, SECONDS = 2, 240.0
CLI = (sys.executable, "-m", "logprobe.app.cli")
WORKERS = 2  # that keep the engine busy


def probing(models: Path) -> Any:
    """Looks of both phases, and what the diagnosis says of each."""
    from logprobe.collectors import Recorder, weights

    home = Path(os.environ["LOGPROBE_HOME"])
    with Recorder(component="trainer") as recorder, service_of(home) as reader:
        with serving(models / "old") as address:
            lab = Laboratory(Client(address), recorder, reader)
            weights.mark(0, step=0)
            lab.rollout()
            answer: dict[str, Any] = printed(home, address, lab.client)
            configure(home, address)
            answer |= {"moved_on": lab.until_probed(models / "new"), "diagnosed": diagnose(home)}
            lab.client.post(
                "/collective_rpc", {"method": "reload_weights", "kwargs": {"weights_path": str(models / "new")}}
            )
            weights.mark(1, step=1)
            answer |= {"stale": lab.until_probed(models / "new", both_kinds), "diagnosed_stale": diagnose(home)}
            (home / "logprobe.yaml").write_text("probe: []\n")  # so that some sequences are still to be scored
            lab.rollout()
        configure(home, address)
        answer |= {"notes": lab.until_noted(), "gone": probe(home, address, "--json")}
        answer["budget"] = reader.read("probe_budget", run=os.environ["LOGPROBE_RUN"]).to_pylist()[0]
    return answer


def printed(home: Path, address: str, client: Client) -> dict[str, Any]:
    """`logprobe probe` of an engine that has time, and of one that has none."""
    until = time.monotonic() + SECONDS
    while (one := probe(home, address, "--json"))["document"]["reason"] == "no_sequence":  # not ingested yet
        assert time.monotonic() < until
    with at_work(client):
        busy = probe(home, address, "--json", "--running", "0")
    return {"printed": one, "words": probe(home, address), "busy": busy}


@contextmanager
def at_work(client: Client) -> Iterator[None]:
    """The engine has a request at any time."""
    done, begun = threading.Event(), threading.Barrier(WORKERS + 1)

    def ask(prompt: list[int]) -> None:
        begun.wait()
        while not done.is_set():
            client.openai.completions.create(model=client.model, prompt=prompt, max_tokens=400, **SAMPLING)

    prompts = [[3, *prompt["prompt_token_ids"]] for prompt in prompts_of(WORKERS, LENGTH)]
    threads = [threading.Thread(target=ask, args=(prompt,)) for prompt in prompts]
    for thread in threads:
        thread.start()
    begun.wait()
    yield
    done.set()
    for thread in threads:
        thread.join()


def both_kinds(looks: list[dict[str, Any]]) -> bool:
    """Whether sequences with cached prompts were seen, and others: what the share leaves decides."""
    return all(any(look[kind] is not None for look in looks) for kind in ("cached_k3", "uncached_k3"))


def rounding(models: Path, dtype: str = "bfloat16") -> Any:
    """What a healthy engine's own arithmetic leaves, for two sizes of model: K3 of a look, and of its log-probs to those in float32."""
    from tiny_model import make_tiny_model
    from vllm import LLM, SamplingParams

    from logprobe.collectors import Recorder, weights
    from logprobe.collectors.vllm.probe import Probe

    weights.mark(0, step=0)
    params = SamplingParams(temperature=1.0, max_tokens=ANSWER, logprobs=0, ignore_eos=True)
    found: dict[str, Any] = {}
    for hidden, layers in ((64, 2), (512, 12)):
        model = make_tiny_model(models.parent / f"of-{hidden}", hidden=hidden, layers=layers)
        settings = engine_arguments(models, logprobs_mode="processed_logprobs", dtype=dtype, model=str(model))
        llm = LLM(**settings)
        with Recorder(component="trainer") as recorder:
            outputs = llm.generate(prompts_of(32, LENGTH), params, use_tqdm=False)
            look = Probe(llm, recorder, share=100, sequences=32).look(outputs, step=1, params=params)
        found[f"{hidden} x {layers}"] = {"look": look["probe/k3"], "float32": k3_to_float32(model, outputs)}
        llm.llm_engine.engine_core.shutdown()
    return found


def k3_to_float32(model: Path, outputs: list[Any]) -> float:
    rows = [
        {"prompt_token_ids": output.prompt_token_ids, "token_ids": list(output.outputs[0].token_ids)}
        for output in outputs
    ]
    d = [
        exact - entry[token].logprob
        for row, values, output in zip(rows, torch_logprobs(model, rows, 1.0), outputs, strict=True)
        for exact, token, entry in zip(values, row["token_ids"], output.outputs[0].logprobs, strict=True)
    ]
    return sum(math.expm1(x) - x for x in d) / len(d)


def inside(models: Path) -> Any:
    """The probe of an engine in the trainer's process: sound with a cache of its own weights, not with one of older weights."""
    from vllm import LLM, SamplingParams

    from logprobe.collectors import Recorder, weights
    from logprobe.collectors.vllm import plugin
    from logprobe.collectors.vllm.probe import Probe

    llm = LLM(**engine_arguments(models, logprobs_mode="processed_logprobs"))
    weights.mark(0, step=0)
    params = SamplingParams(temperature=1.0, max_tokens=ANSWER, logprobs=0, ignore_eos=True)
    with Recorder(component="trainer") as recorder:
        probe, found = Probe(llm, recorder, share=100), []
        for step in (1, 2, 3):  # the second time every prompt is cached
            if step == 3:
                llm.collective_rpc("reload_weights", kwargs={"weights_path": str(models / "new")})
            outputs = llm.generate(prompts_of(4, LENGTH), params, use_tqdm=False)
            found.append(probe.look(outputs, step=step, params=params))
    return {"looks": found, "flushed": plugin.flush()}


def service_of(home: Path) -> Any:
    """A service on a home that exists."""
    home.mkdir(parents=True, exist_ok=True)
    return service(home)


def configure(home: Path, address: str, running: int = 32) -> None:
    """Has the service probe the engine from now on."""
    (home / "logprobe.yaml").write_text(SETTINGS.format(url=address, running=running))


class Laboratory:
    """Rollouts from the engine, training steps with them, and what the probe recorded."""

    def __init__(self, client: Client, recorder: Any, reader: Any) -> None:
        self.client, self.recorder, self.reader = client, recorder, reader
        self.run = os.environ["LOGPROBE_RUN"]
        self.step = self.fresh = 0

    def rollout(self) -> list[dict[str, Any]]:
        """Answers to the same prompts as always, and to some that the engine has never seen."""
        self.fresh += 1
        new = [
            [2 + (self.fresh * 37 + 5 * i) % 500, *p["prompt_token_ids"][1:]]
            for i, p in enumerate(prompts_of(FRESH, LENGTH))
        ]
        prompts = [prompt["prompt_token_ids"] for prompt in prompts_of(REPEATED, LENGTH)] + new
        answer = self.client.openai.completions.create(
            model=self.client.model, prompt=prompts, max_tokens=ANSWER, **SAMPLING
        )
        from logprobe.collectors.vllm.ids import response_sample_id

        return [
            {
                "sample_id": response_sample_id(answer.id, choice.index, prompts=len(prompts)),
                "prompt_token_ids": prompt,
                "token_ids": choice.token_ids,
            }
            for prompt, choice in zip(prompts, answer.choices, strict=True)
        ]

    def train(self, checkpoint: Path) -> None:
        """A step whose log-probs are those of `checkpoint`, weight version 1."""
        rows = self.rollout()
        self.step += 1
        self.recorder.training(
            step=self.step,
            sample_ids=[row["sample_id"] for row in rows],
            token_ids=[row["token_ids"] for row in rows],
            trainer_logprobs=torch_logprobs(checkpoint, rows, 1.0),
            weight_version="1",
        )
        self.recorder.flush()

    def until_probed(
        self, checkpoint: Path, enough: Callable[[list[dict[str, Any]]], bool] = lambda _: True
    ) -> list[dict[str, Any]]:
        """Trains until the probe has recorded some looks with steps after this one, and they are `enough`."""
        first, until = self.step + 2, time.monotonic() + SECONDS
        while time.monotonic() < until:
            self.train(checkpoint)
            looks = self.reader.read("diagnosis_probe", run=self.run, first=first, last=None).to_pylist()
            if len(looks) >= LOOKS and enough(looks):
                return looks
            time.sleep(1)
        raise AssertionError(f"no look within {SECONDS:g} s; notes: {notes(self.reader)}")

    def until_noted(self) -> list[str]:
        """What the service noted once the engine was gone; some of its looks later."""
        until = time.monotonic() + SECONDS
        while not notes(self.reader):
            assert time.monotonic() < until
            time.sleep(1)
        time.sleep(5)  # one look per second: it must not be noted again
        return notes(self.reader)


def diagnose(home: Path) -> list[dict[str, Any]]:
    """Findings of `logprobe diagnose`."""
    return command("diagnose", os.environ["LOGPROBE_RUN"], "--home", str(home), "--json")["findings"]


def probe(home: Path, address: str, *words: str) -> dict[str, Any]:
    """Exit code of `logprobe probe`, and what it printed."""
    given = ("probe", os.environ["LOGPROBE_RUN"], "--url", address, "--home", str(home), "--share", "1", *words)
    done = subprocess.run([*CLI, *given], capture_output=True, text=True, check=False)
    document = json.loads(done.stdout) if "--json" in words else None
    return {"code": done.returncode, "words": done.stdout, "document": document}


def command(*words: str) -> Any:
    done = subprocess.run([*CLI, *words], capture_output=True, text=True, check=False)
    assert done.stdout, done.stderr
    return json.loads(done.stdout)


def notes(reader: Any) -> list[str]:
    """What the probe noted of the engine."""
    query = "SELECT event FROM health_records WHERE component = 'probe' AND event = 'probe_engine'"
    return list(reader.query(query)["event"].to_pylist())


if __name__ == "__main__":
    print("RESULT", json.dumps(globals()[sys.argv[1]](Path(sys.argv[2])), default=str))
