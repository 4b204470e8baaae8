"""What edge reduction costs a training step: steps of a small transformer, with and without a recorder, taking turns."""

from __future__ import annotations

import statistics
import tempfile
import time

import torch
from figure import Figure
from torch import nn

from logprobe.collectors import Recorder

BATCH, TIME = 8, 512
VOCABULARY, WIDTH, LAYERS, HEADS = 4096, 192, 2, 4
ROUNDS = 9
RAW_FRACTION = 0.01
TARGET_PERCENT = 1.0

Batch = dict[str, torch.Tensor]


class Policy(nn.Module):
    """A causal language model: 1.7 million parameters beside its 0.8 million of embeddings."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 4 * WIDTH, dropout=0.0, batch_first=True, norm_first=True)
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.layers = nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False)
        self.head = nn.Linear(WIDTH, VOCABULARY)
        self.register_buffer("causal", nn.Transformer.generate_square_subsequent_mask(TIME))

    def forward(self, token_ids: torch.Tensor) -> torch.Tensor:
        """Log-probs [batch, time − 1] of each next token."""
        logits = self.head(self.layers(self.embedding(token_ids), mask=self.causal, is_causal=True))[:, :-1]
        return torch.log_softmax(logits, -1).gather(-1, token_ids[:, 1:, None]).squeeze(-1)


class Trainer:
    """Policy-gradient steps; each records its batch where it is given a recorder."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.policy = Policy()
        self.optimizer = torch.optim.AdamW(self.policy.parameters(), lr=1e-5)
        self.token_ids = torch.randint(VOCABULARY, (BATCH, TIME))
        self.old = self.policy(self.token_ids).detach()
        self.rollout = self.old + 0.01 * torch.randn_like(self.old)
        self.mask = torch.arange(TIME - 1) < torch.randint(TIME // 2, TIME, (BATCH, 1))
        self.calls: list[float] = []
        self.processor_seconds: list[float] = []  # of steps without a recorder

    def step(self, number: int, recorder: Recorder | None) -> float:
        """One optimizer step; → its seconds."""
        started, processor = time.perf_counter(), time.thread_time()
        if recorder is not None:
            self._record(number, recorder)
        ratio = torch.exp(self.policy(self.token_ids) - self.old)
        loss = -(ratio * self.mask).sum() / self.mask.sum()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        if recorder is None:
            self.processor_seconds.append(time.thread_time() - processor)
        return time.perf_counter() - started

    def _record(self, number: int, recorder: Recorder) -> None:
        started = time.perf_counter()
        recorder.training(
            step=number,
            sample_ids=[f"{number}/{row}" for row in range(BATCH)],
            token_ids=self.token_ids[:, 1:],
            trainer_logprobs=self.old,
            rollout_logprobs=self.rollout,
            mask=self.mask,
        )
        self.calls.append(time.perf_counter() - started)
        recorder.flush(0)  # wakes the recorder's thread: all its work, the durable write included, falls into this step


def take_turns(trainer: Trainer, recorder: Recorder) -> tuple[list[float], list[float]]:
    """Seconds of steps with the recorder and without; which goes first changes from round to round."""
    recorded, plain = [], []
    for number in range(ROUNDS):
        for turn in (recorder, None) if number % 2 else (None, recorder):
            (plain if turn is None else recorded).append(trainer.step(number, turn))
            if turn is not None and not turn.flush():
                raise RuntimeError(f"the recorder lost data: {turn.health}")
    return recorded, plain


def processor_seconds(recorder: Recorder) -> float:
    """Of callers and of the recorder's thread, up to now."""
    cost = recorder.health["cost"]
    return float(cost["caller_seconds"] + cost["thread_seconds"])


def measure() -> list[Figure]:
    """Extra time of a step, the processor time behind it, and what the caller waits for."""
    torch.set_num_threads(1)  # two on two busy cores wait for one another, and that is all one would measure
    trainer = Trainer()
    trainer.step(-2, None)
    settings = {"raw_fraction": RAW_FRACTION, "worst_sequences": 1, "flush_interval": 600}
    with tempfile.TemporaryDirectory() as home, Recorder(home, "edge", **settings) as recorder:
        trainer.step(-1, recorder)
        recorder.flush()
        before = processor_seconds(recorder)
        recorded, plain = take_turns(trainer, recorder)
        spent = processor_seconds(recorder) - before
    return _figures(trainer, recorded, plain, spent / ROUNDS)


def _figures(trainer: Trainer, recorded: list[float], plain: list[float], spent: float) -> list[Figure]:
    name = "Edge reduction"
    sizes = f"{BATCH}×{TIME} tokens, raw_fraction = {RAW_FRACTION}"
    # The least disturbed by whatever else the machine does
    step, processor = (
        min(plain),
        min(trainer.processor_seconds),
    )
    return [
        _share(
            f"{name}, extra time of a training step", min(recorded) - step, step, f"{sizes}; best of {ROUNDS} rounds"
        ),
        _share(
            f"{name}, processor time", spent, processor, "caller and thread, the durable write of each step included"
        ),
        Figure(
            name=f"{name}, Recorder.training call in a training step, p50",
            value=statistics.median(trainer.calls) * 1e6,
            unit="µs",
            note=f"of a step of {step * 1e3:.0f} ms; caches cold",
        ),
    ]


def _share(name: str, spent: float, step: float, note: str) -> Figure:
    percent = 100 * spent / step
    return Figure(
        name=name,
        value=percent,
        unit="%",
        target=f"≤ {TARGET_PERCENT:.0f}",
        met=percent <= TARGET_PERCENT,
        note=f"{spent * 1e3:.2f} ms of {step * 1e3:.0f} ms; {note}",
    )
