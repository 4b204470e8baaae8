"""A real vLLM engine in this process: groups of answers out, new weights in."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

# Read by vLLM when it is imported. One process and one thread: recordings run side by side on small machines.
os.environ.update(
    HF_HUB_OFFLINE="1",
    VLLM_CPU_KVCACHE_SPACE="1",
    VLLM_ENABLE_V1_MULTIPROCESSING="0",
    VLLM_LOGGING_LEVEL="ERROR",
    VLLM_NO_USAGE_STATS="1",
)

import torch
from vllm import CompletionOutput, EngineArgs, RequestOutput, SamplingParams
from vllm.sampling_params import RequestOutputKind
from vllm.v1.engine.llm_engine import LLMEngine

from logprobe.collectors import weights as weight_marks
from logprobe.collectors.recorder.recorder import Recorder
from logprobe.collectors.vllm.ids import sample_ids

Pause = Literal["idle", "keep", "abort"]
DEFAULTS: Final = {
    "dtype": "float32",
    "enforce_eager": True,
    "block_size": 32,  # smaller than the CPU default, so that toy prompts fill a block
    "max_num_seqs": 96,
    "distributed_executor_backend": "uni",
    "disable_log_stats": True,
}


@dataclass(frozen=True, slots=True)
class Answers:
    """All answers to one prompt, as the engine returned them."""

    group_id: str
    sample_ids: list[str]
    token_ids: list[list[int]]
    logprobs: list[list[float]]  # r; empty where the request did not ask


class RolloutEngine:
    """Samples completions of token ids.

    Args:
        checkpoint: folder with the first weights.
        recorder: writes the trainer's side of weight updates.
        sampling: `SamplingParams` that differ from vLLM's defaults.
        replica: name of this engine where there are several.
        **settings: `EngineArgs` that differ from `DEFAULTS` and vLLM's defaults.
    """

    def __init__(
        self,
        checkpoint: Path,
        *,
        recorder: Recorder,
        sampling: Mapping[str, Any],
        replica: str | None = None,
        **settings: Any,
    ) -> None:
        self._recorder = recorder
        os.environ["LOGPROBE_REPLICA"] = replica or ""  # read by the plugin when the engine is built
        arguments = EngineArgs(model=str(checkpoint), **{**DEFAULTS, **settings})
        self._engine = LLMEngine.from_engine_args(arguments)
        final = RequestOutputKind.FINAL_ONLY
        # Log-probs of the sampled token alone, unless `sampling` says otherwise.
        self._sampling = SamplingParams(**{"logprobs": 0, "detokenize": False, "output_kind": final, **sampling})
        self.in_flight: set[str] = set()

    def submit(self, group_id: str, prompt_ids: Sequence[int], **changes: Any) -> None:
        """Ask for the answers to one prompt, with `changes` to the sampling params; they come out of a later `step`."""
        params = self._sampling.clone()
        for name, value in changes.items():
            setattr(params, name, value)
        self._engine.add_request(group_id, {"prompt_token_ids": list(prompt_ids)}, params)
        self.in_flight.add(group_id)

    def step(self) -> list[Answers]:
        """One iteration of the engine; the groups that became complete by it."""
        finished = [_answers(output) for output in self._engine.step() if output.finished]
        self.in_flight -= {group.group_id for group in finished}
        return finished

    def mark(self, version: int, step: int | None, checkpoint: Path | None = None) -> None:
        """Tell logprobe which weights the engine has from now on, and where they are kept."""
        weight_marks.mark(version, step, checkpoint=checkpoint, recorder=self._recorder)

    def close(self) -> None:
        """Ends the engine; another one can be built in this process."""
        self._engine.engine_core.shutdown()

    def update(
        self,
        weights: Iterable[tuple[str, torch.Tensor]],
        *,
        version: int,
        step: int,
        pause: Pause,
        clear_cache: bool,
        checkpoint: Path | None = None,
    ) -> list[str]:
        """Put new weights in.

        Args:
            weights: names as in the checkpoint, and tensors.
            version: how these weights are called from now on.
            step: optimizer step that made them.
            pause: "idle": nothing is in flight; "keep": requests go on with the new weights and their old KV cache; "abort":
                they are dropped, and the caller submits them again.
            clear_cache: whether cached prefixes are forgotten.
            checkpoint: folder they are kept in; None: they are not.

        Returns:
            Groups that were dropped.
        """
        core = self._engine.engine_core.engine_core
        dropped = sorted(self.in_flight) if pause == "abort" else []
        if dropped:
            self._engine.abort_request(dropped)
            self.in_flight.clear()
        if pause != "idle":
            core.pause_scheduler(mode=pause, clear_cache=False)
        # Not `load_weights` on the model: the CPU backend computes with packed copies, which only a reload makes anew.
        self._engine.collective_rpc("reload_weights", kwargs={"weights_iterator": weights})
        if clear_cache:
            self._engine.reset_prefix_cache()
        self.mark(version, step, checkpoint)
        if pause != "idle":
            core.resume_scheduler()
        return dropped


def _answers(output: RequestOutput) -> Answers:
    tokens = [list(completion.token_ids) for completion in output.outputs]
    return Answers(output.request_id, sample_ids(output), tokens, [_logprobs(done) for done in output.outputs])


def _logprobs(completion: CompletionOutput) -> list[float]:
    if completion.logprobs is None:
        return []
    return [row[token].logprob for row, token in zip(completion.logprobs, completion.token_ids, strict=True)]
