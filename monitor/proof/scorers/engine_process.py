"""Process of one engine: ``python -m logprobe.monitor.proof.scorers.engine_process JOB.json ANSWER.json``.

The process takes an `EngineJob` and returns an `EngineAnswer`.
"""

from __future__ import annotations

import gc
import itertools
import json
import math
import os
import shlex
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from logprobe.monitor.proof.prefixes import shared_prefixes
from logprobe.monitor.proof.scorers.child import answer_job
from logprobe.monitor.proof.scorers.forced import FORCED, KEY, READINGS, WorkerCalls
from logprobe.monitor.proof.scorers.jobs import UNREPEATED, EngineAnswer, EngineJob, Replay, Sampled, SequenceJob
from logprobe.monitor.proof.scorers.watching import Outputs

_PROCESSOR = "logprobe.monitor.proof.scorers.forced:ForcedTokens"
_FEWEST, _ROUNDS, _TIMED = 3, 8, 0.5  # rounds that are timed, and seconds after which no more begin
_ALONE = 4  # sequences that are scored with no other request beside them
_WORKER = f"{WorkerCalls.__module__}.{WorkerCalls.__qualname__}"


def main(job: EngineJob, folder: Path) -> EngineAnswer:
    """Start the engine, score, and return the answer."""
    os.environ[READINGS] = str(folder / "readings.jsonl")
    scorer = Scorer(job)
    answer: EngineAnswer = {"settings": scorer.settings()}
    if "decode" in scorer.paths:
        began = time.monotonic()
        answer["decode"] = scorer.decode(job.get("replay"))
        answer["tokens_per_s"] = scorer.tokens / (time.monotonic() - began)
        timed = scorer.paths == ["decode"] and not job.get("replay")  # an arm of a bisection
        answer["rates"] = scorer.rates() if timed else []
        answer["kv_tokens"] = scorer.room()
    if "alone" in scorer.paths:
        answer["alone"] = scorer.alone()
    if "prefill" in scorer.paths:  # last: from then on the engine divides logits by a temperature
        began = time.monotonic()
        answer["prefill"] = scorer.prefill()
        answer["prefill_tokens_per_s"] = scorer.tokens / (time.monotonic() - began)
    return answer


class Scorer:
    """Engine that repeats given tokens. `paths`: those of the job that it can take."""

    def __init__(self, job: EngineJob) -> None:
        from vllm.v1.engine.llm_engine import LLMEngine  # noqa: PLC0415 - after the environment is set

        self._sequences = job["sequences"]
        self._checkpoints = job.get("checkpoints", {})
        arguments = _arguments(job["model"], job["arguments"], job["overrides"])
        self.paths = job["paths"]
        self._repeats = "decode" in self.paths and _repeats(arguments)
        if self._repeats:
            arguments.enable_trace_replay = True
        elif "decode" in self.paths and _takes_processors(arguments):
            arguments.logits_processors = [*(arguments.logits_processors or []), _PROCESSOR]
        elif "prefill" in self.paths:
            self.paths = ["prefill"]
        elif self.paths:
            raise ValueError(f"it repeats no tokens: {UNREPEATED}")
        gc.freeze()  # what was imported is no garbage: vLLM looks through it several times while an engine starts
        self._engine = LLMEngine.from_engine_args(arguments)

    @property
    def tokens(self) -> int:
        """Number of response tokens of all sequences."""
        return sum(len(sequence["response_ids"]) for sequence in self._sequences)

    @property
    def _read(self) -> bool:
        """True if the processor reads log-probs instead of the engine."""
        processed = str(self._engine.vllm_config.model_config.logprobs_mode).startswith("processed")
        return processed and not self._repeats

    def settings(self) -> Mapping[str, Any]:
        """Return the engine's effective settings in the plugin's format."""
        document = self.document()
        return {**document["summary"], "vllm": document["versions"]["vllm"]}

    def document(self) -> Mapping[str, Any]:
        """Return the engine's configuration in the plugin's format."""
        from logprobe.collectors.vllm.config import engine_document  # noqa: PLC0415

        chosen = self._engine.collective_rpc("logprobe_effective")[0]
        return engine_document(self._engine.vllm_config, injected=False, effective=chosen)

    def sample(self, prompts: Sequence[Sequence[int]], tokens: int, temperature: float = 1.0) -> list[Sampled]:
        """Return answers of the engine with at most `tokens` tokens each, and the reported log-probs."""
        from vllm import SamplingParams  # noqa: PLC0415
        from vllm.sampling_params import RequestOutputKind  # noqa: PLC0415

        for index, prompt in enumerate(prompts):
            params = SamplingParams(
                temperature=temperature,
                max_tokens=tokens,
                seed=index,
                logprobs=0,
                detokenize=False,
                output_kind=RequestOutputKind.FINAL_ONLY,
            )
            self._engine.add_request(str(index), {"prompt_token_ids": list(prompt)}, params)
        answers: dict[int, Sampled] = {}
        while self._engine.has_unfinished_requests():
            for done in (output for output in self._engine.step() if output.finished):
                ids = list(done.outputs[0].token_ids)
                index = int(done.request_id)
                answers[index] = {
                    "prompt_ids": list(prompts[index]),
                    "response_ids": ids,
                    "rollout_logprobs": _reported(done),
                }
        return [answers[index] for index in range(len(prompts))]

    def decode(self, replay: Replay | None) -> list[list[float | None]]:
        """Return the log-probs of decode kernels, with the tokens forced one after the other."""
        reported = self._replayed(replay) if replay else self._plainly()
        return self._values(reported, range(len(self._sequences)))

    def alone(self) -> list[list[float | None] | None]:
        """Return `decode` of a few sequences with no other request in the engine, and None for the others."""
        few = range(min(_ALONE, len(self._sequences)))
        reported: dict[int, list[float]] = {}
        for index in few:
            self._engine.reset_prefix_cache()
            self._submit([index])
            reported.update(self._finish())
        return [*self._values(reported, few), *[None] * (len(self._sequences) - len(few))]

    def watched(self, *, operations: bool) -> Iterator[Outputs]:
        """Yield the outputs of the network for each sequence, with no other request in the engine (see `watching`)."""
        for index in range(len(self._sequences)):
            self._engine.reset_prefix_cache()
            self._engine.collective_rpc("logprobe_watch", args=(operations,))
            self._submit([index])
            self._finish()
            yield self._engine.collective_rpc("logprobe_watched")[0]

    def _values(self, reported: Mapping[int, list[float]], indices: Iterable[int]) -> list[list[float | None]]:
        if not self._read:
            return [_plain(reported[index]) for index in indices]
        read = {entry["key"]: entry["readings"] for entry in map(json.loads, _lines(os.environ[READINGS]))}
        return [_plain(read[str(index)]) for index in indices]

    def _plainly(self) -> dict[int, list[float]]:
        self._submit(range(len(self._sequences)))
        return self._finish()

    def rates(self) -> list[float]:
        """Return the tokens/s of further rounds over the sample, without one-time work such as compiling."""
        rates: list[float] = []
        ends = time.monotonic() + _TIMED
        while len(rates) < _FEWEST or (len(rates) < _ROUNDS and time.monotonic() < ends):
            self._engine.reset_prefix_cache()
            began = time.monotonic()
            self._plainly()
            rates.append(self.tokens / (time.monotonic() - began))
        return rates

    def room(self) -> int | None:
        """Return the room of the KV cache in tokens, or None if this vLLM does not report it."""
        cache = self._engine.vllm_config.cache_config
        blocks = getattr(cache, "num_gpu_blocks", None)
        return blocks and blocks * cache.block_size

    def prefill(self) -> list[list[float | None] | None]:
        """Return the log-probs of prefill kernels, with prompt and response as one prompt.

        Sequences with relevant sampling params beyond the temperature have None, since vLLM ignores those params for
        prompts.
        """
        answers: list[list[float | None] | None] = [None] * len(self._sequences)
        raw = str(self._engine.vllm_config.model_config.logprobs_mode).startswith("raw")
        plain = [index for index, sequence in enumerate(self._sequences) if raw or not sequence["sampling"]]
        for temperature in sorted({self._sequences[index]["temperature"] for index in plain}):
            self._engine.collective_rpc("logprobe_prompt_temperature", args=(1.0 if raw else temperature,))
            chosen = [index for index in plain if self._sequences[index]["temperature"] == temperature]
            for index, values in self._score_prompts(chosen).items():
                answers[index] = _plain(values)
        return answers

    def _score_prompts(self, indices: Sequence[int]) -> dict[int, list[float]]:
        from vllm import SamplingParams  # noqa: PLC0415

        params = SamplingParams(max_tokens=1, prompt_logprobs=0, detokenize=False, temperature=1.0)
        for index in indices:
            sequence = self._sequences[index]
            prompt = [*sequence["prompt_ids"], *sequence["response_ids"]]
            self._engine.add_request(str(index), {"prompt_token_ids": prompt}, params.clone())
        logprobs = {}
        while self._engine.has_unfinished_requests():
            for output in self._engine.step():
                if output.finished:
                    index, tokens = int(output.request_id), output.prompt_token_ids
                    start = len(self._sequences[index]["prompt_ids"])
                    rows = output.prompt_logprobs[start:]
                    logprobs[index] = [row[token].logprob for row, token in zip(rows, tokens[start:], strict=True)]
        return logprobs

    def _replayed(self, replay: Replay) -> dict[int, list[float]]:
        """Replay weight updates during requests, or prefixes cached by older weights."""
        reported: dict[int, list[float]] = {}
        for history, indices in _by_history(self._sequences, in_flight=replay["in_flight"]).items():
            for together in self._prefilled_at_once(indices):
                self._engine.reset_prefix_cache()
                if replay["prefix"] is not None:
                    self._warm(replay, together)
                reported.update(self._through(history, together))
        return reported

    def _prefilled_at_once(self, indices: Sequence[int]) -> Iterator[list[int]]:
        """Yield groups of requests that begin in one step, so that they reach the token of an update together."""
        limits = self._engine.vllm_config.scheduler_config
        group: list[int] = []
        for index in indices:
            tokens = sum(len(self._sequences[at]["prompt_ids"]) for at in (*group, index))
            if group and (tokens > limits.max_num_batched_tokens or len(group) == limits.max_num_seqs):
                yield group
                group = []
            group.append(index)
        yield group

    def _warm(self, replay: Replay, indices: Sequence[int]) -> None:
        """Cache prompts, or their common prefixes, as computed by the weights of another version."""
        from vllm import SamplingParams  # noqa: PLC0415

        self._load(str(replay["prefix"]))
        prompts = [tuple(sequence["prompt_ids"]) for sequence in self._sequences]
        shared = shared_prefixes(prompts) if replay["shared"] else dict(zip(prompts, prompts, strict=True))
        for prefix in {shared[prompts[index]] for index in indices} - {()}:
            params = SamplingParams(max_tokens=1, detokenize=False)
            self._engine.add_request(f"warm {hash(prefix)}", {"prompt_token_ids": list(prefix)}, params)
        self._finish()

    def _through(self, history: Sequence[tuple[int, str]], indices: Sequence[int]) -> dict[int, list[float]]:
        """Score requests that continue while the weights change. `history`: response tokens and versions of the
        changes.
        """
        reported: dict[int, list[float]] = {}
        self._load(history[0][1])
        self._submit(indices)
        for (before, _), (after, version) in itertools.pairwise(history):
            for _ in range(after - before):
                reported.update(self._step())
            self._load(version)
        return {**reported, **self._finish()}

    def _load(self, version: str) -> None:
        self._engine.collective_rpc("reload_weights", kwargs={"weights_path": self._checkpoints[version]})

    def _submit(self, indices: Sequence[int]) -> None:
        from vllm import SamplingParams  # noqa: PLC0415
        from vllm.sampling_params import RequestOutputKind  # noqa: PLC0415

        for index in indices:
            sequence = self._sequences[index]
            response = sequence["response_ids"]
            sampling = {name: int(v) if name == "top_k" else v for name, v in sequence["sampling"].items()}
            params = SamplingParams(
                temperature=sequence["temperature"],
                max_tokens=len(response),
                ignore_eos=True,
                logprobs=None if self._read else 0,
                detokenize=False,
                output_kind=RequestOutputKind.FINAL_ONLY,
                **(
                    {"trace_decode_token_ids": response}
                    if self._repeats
                    else {"extra_args": {FORCED: response, KEY: str(index)}}
                ),
                **sampling,
            )
            self._engine.add_request(str(index), {"prompt_token_ids": list(sequence["prompt_ids"])}, params)

    def _finish(self) -> dict[int, list[float]]:
        reported: dict[int, list[float]] = {}
        while self._engine.has_unfinished_requests():
            reported.update(self._step())
        return reported

    def _step(self) -> dict[int, list[float]]:
        finished = [output for output in self._engine.step() if output.finished]
        return {int(done.request_id): _reported(done) for done in finished if not done.request_id.startswith("warm")}


def _reported(output: Any) -> list[float]:
    """Return the engine's log-probs of the forced tokens, empty if none were requested."""
    completion = output.outputs[0]
    if completion.logprobs is None:
        return []
    return [row[token].logprob for row, token in zip(completion.logprobs, completion.token_ids, strict=True)]


def _by_history(sequences: Sequence[SequenceJob], *, in_flight: bool) -> dict[tuple[tuple[int, str], ...], list[int]]:
    """Return the indices of sequences by their history, the first response token of each weight version. Without
    `in_flight`, a history has one version.
    """
    indices: dict[tuple[tuple[int, str], ...], list[int]] = {}
    for index, sequence in enumerate(sequences):
        history = tuple((start, version) for start, _, version in sequence["spans"]) if in_flight else ()
        indices.setdefault(history or ((0, sequence["version"]),), []).append(index)
    return indices


def _arguments(model: str, arguments: str, overrides: Mapping[str, Any]) -> Any:
    """Return vLLM's `EngineArgs` for arguments of `vllm serve`, with `overrides` on top."""
    from vllm import EngineArgs  # noqa: PLC0415
    from vllm.utils.argparse_utils import FlexibleArgumentParser  # noqa: PLC0415

    parser = EngineArgs.add_cli_args(FlexibleArgumentParser(prog="--engine-args", exit_on_error=False))
    made = EngineArgs.from_cli_args(parser.parse_args(["--model", model, *shlex.split(arguments)]))
    for name in overrides:
        if not hasattr(made, name):
            raise ValueError(f"this vLLM has no engine argument {name!r}; leave it out")
    if "hf_overrides" in overrides:
        overrides = {**overrides, "hf_overrides": {**(made.hf_overrides or {}), **overrides["hf_overrides"]}}
    made = replace(made, **overrides)  # makes configurations of dictionaries, as the command line does
    made.worker_extension_cls = _WORKER
    made.disable_log_stats = True
    made.skip_tokenizer_init = True  # token ids in, token ids out: many a trainer's checkpoint has no tokenizer
    return made


def _repeats(arguments: Any) -> bool:
    """Return whether the engine repeats given tokens without a processor (vLLM 0.32). Its second model runner does, and
    rejects processors for the first.
    """
    return hasattr(arguments, "enable_trace_replay") and bool(arguments.create_engine_config().use_v2_model_runner)


def _takes_processors(arguments: Any) -> bool:
    """Return whether a processor can force tokens in the engine. vLLM takes none beside speculative decoding."""
    return hasattr(arguments, "logits_processors") and arguments.speculative_config is None


def _lines(path: str) -> list[str]:
    return Path(path).read_text(encoding="utf-8").splitlines()


def _plain(values: Sequence[float]) -> list[float | None]:
    """Return JSON values. JSON has no −inf, so a token without probability is null and counted."""
    return [value if math.isfinite(value) else None for value in values]


if __name__ == "__main__":
    answer_job(main)
