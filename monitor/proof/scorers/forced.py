"""Logits processor for vLLM that makes a request repeat given tokens and reads their log-probs (teacher forcing).

The processor claims not to change the argmax. Therefore vLLM calls it after penalties, temperature and min-p, just
before top-k and top-p. vLLM applies the last two to a copy, so the readings equal the values of `processed_logprobs`.
Raw modes need no reading, because vLLM takes their log-probs before any processor runs. The processor writes readings
to a file, one line per finished sequence, since the sampler may run in another process.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any, Final

import torch
from vllm import SamplingParams
from vllm.v1.sample.logits_processor import BatchUpdate, LogitsProcessor, MoveDirectionality
from vllm.v1.sample.ops.topk_topp_sampler import apply_top_k_top_p

from logprobe.collectors.vllm.effective import effective
from logprobe.monitor.proof.scorers.watching import Outputs, Watch

FORCED: Final = "logprobe_forced"  # in `SamplingParams.extra_args`: the token ids to repeat
KEY: Final = "logprobe_key"  # and the name of the sequence in the file of readings
READINGS: Final = "LOGPROBE_PROOF_READINGS"  # environment: path of that file
_UNLIMITED: Final = 1 << 30


class _Row:
    """Request in the batch. `output`: vLLM's list of sampled tokens, which grows during sampling."""

    def __init__(self, params: SamplingParams, output: list[int]) -> None:
        extra = params.extra_args or {}
        self.key: str = extra[KEY]
        self.tokens: list[int] = extra[FORCED]
        self.output = output
        self.top_k = params.top_k if params.top_k > 0 else _UNLIMITED
        self.top_p = params.top_p


class ForcedTokens(LogitsProcessor):  # type: ignore[misc]
    """Processor that forces the tokens in a request's ``extra_args`` and ignores other requests."""

    def __init__(self, vllm_config: Any, device: torch.device, is_pin_memory: bool) -> None:  # noqa: ARG002, FBT001
        self._rows: dict[int, _Row] = {}
        self._readings: dict[str, list[float]] = {}  # by sequence: a preempted request comes back as a new row
        self._logits = vllm_config.model_config.logprobs_mode == "processed_logits"

    def is_argmax_invariant(self) -> bool:
        """Return True, so that vLLM calls the processor after the temperature. Requests have a temperature above 0, so
        none is greedy.
        """
        return True

    def update_state(self, batch_update: BatchUpdate | None) -> None:
        """Follow the removal, addition and move of requests in the batch, in this order."""
        if batch_update is None:
            return
        for index in batch_update.removed:
            self._rows.pop(index, None)
        for index, params, _, output in batch_update.added:
            self._rows.pop(index, None)
            if FORCED in (params.extra_args or {}):
                row = self._rows[index] = _Row(params, output)
                self._readings.setdefault(row.key, [float("nan")] * len(row.tokens))
        for source, target, direction in batch_update.moved:
            moved, replaced = self._rows.pop(source, None), self._rows.pop(target, None)
            if moved is not None:
                self._rows[target] = moved
            if replaced is not None and direction == MoveDirectionality.SWAP:
                self._rows[source] = replaced

    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        """Read the log-prob of each forced token, then exclude all other tokens. `logits`: [requests, vocabulary]."""
        indices = [index for index, row in self._rows.items() if len(row.output) < len(row.tokens)]
        if not indices:
            return logits
        rows = [self._rows[index] for index in indices]
        tokens = torch.tensor([row.tokens[len(row.output)] for row in rows], device=logits.device)
        places = torch.tensor(indices, device=logits.device)
        for row, value in zip(rows, self._read(logits[places], rows, tokens).tolist(), strict=True):
            self._readings[row.key][len(row.output)] = value
            if len(row.output) == len(row.tokens) - 1:
                _write(row.key, self._readings[row.key])
        logits[places] = -torch.inf
        logits[places, tokens] = 0.0
        return logits

    def _read(self, logits: torch.Tensor, rows: list[_Row], tokens: torch.Tensor) -> torch.Tensor:
        size = logits.shape[-1]
        k = torch.tensor([min(row.top_k, size) for row in rows], device=logits.device)
        p = torch.tensor([row.top_p for row in rows], device=logits.device)
        kept = apply_top_k_top_p(logits, k if bool((k < size).any()) else None, p if bool((p < 1).any()) else None)
        values = kept if self._logits else kept.log_softmax(dim=-1, dtype=torch.float32)
        return values.gather(1, tokens[:, None])[:, 0]


def _write(key: str, readings: list[float]) -> None:
    line = json.dumps({"key": key, "readings": readings}) + "\n"
    descriptor = os.open(os.environ[READINGS], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(descriptor, line.encode())
    finally:
        os.close(descriptor)


class WorkerCalls:
    """Mixin of vLLM's workers for reading settings, recording outputs and applying a temperature to prompts."""

    model_runner: Any  # the worker's
    vllm_config: Any

    def logprobe_effective(self) -> Mapping[str, object]:
        """Return the worker's effective settings in the plugin's format."""
        return effective(self, self.vllm_config)

    def logprobe_watch(self, operations: bool) -> None:  # noqa: FBT001 - vLLM passes places
        """Start recording the network's output."""
        self._logprobe_watch = Watch(operations=operations, every=True).__enter__()

    def logprobe_watched(self) -> Outputs:
        """Return the recorded outputs and stop recording."""
        self._logprobe_watch.__exit__()
        return self._logprobe_watch.outputs

    def logprobe_prompt_temperature(self, temperature: float) -> None:
        """Divide all later logits by `temperature`. Call this only while scoring prompts."""
        model = self.model_runner.model
        compute = type(model).compute_logits
        model.compute_logits = lambda *args, **kwargs: compute(model, *args, **kwargs).float() / temperature
