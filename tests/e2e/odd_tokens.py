"""A home with everything that a page of tokens has to say: broken log-probs of every kind, tool output, an update in flight, answers
that did not match, sequences without raw tokens, and text that means harm. Recorded by the real `Recorder`, read by a real tokenizer.
"""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import numpy.typing as npt
from recorded_home import take_in
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from logprobe.collectors.recorder.recorder import Recorder
from logprobe.monitor.home import Home
from logprobe.monitor.store.retention import Retention, RetentionPolicy
from logprobe.monitor.store.store import Store

RUN = "odd <b>run</b>"
REDUCED = "statistics only"
SAMPLES = ["<img src=x onerror=alert(1)>", "tools", "other tokens", "no rollout", "plain"]
TOOLS, OTHER, ALONE = 1, 2, 3
FIRST_BROKEN = 3  # step
LENGTH = 36
# What a policy may write; every piece is one token of the vocabulary.
PIECES = [
    "<script>alert(1)</script>", "<img src=x onerror=alert(1)>", "\u202egnp.exe", "\x00\x1b[31m", "\u200b", "\n", "  ", "the", " answer",
    " is", " 42", "مرحبا", "日本", "`code`", "=SUM(A1)", "&amp;", "\u0301",
]  # fmt: skip


def make_home(folder: Path, *, forget: bool = True) -> None:
    """Fills the home `folder`. `forget`: retention has taken the raw tokens of the first step."""
    with Recorder(folder, RUN) as recorder:
        for step in range(3):
            _record(recorder, step)
        if forget:
            assert recorder.flush(120)
            _store(folder, forget=True)
        for step in range(3, 6):
            _record(recorder, step)
    _reduced(folder)
    _store(folder)
    (folder / "tokenizer.json").write_text(tokenizer().to_str(), encoding="utf-8")
    (folder / "logprobe.yaml").write_text('tokenizers: {"odd*": tokenizer.json}\n', encoding="utf-8")


BYTES = [0xE2, 0x96]  # no character by themselves


def tokenizer() -> Tokenizer:
    """A byte-level vocabulary, as those of large models are, with `PIECES` behind the 256 bytes."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    made = Tokenizer(models.BPE(vocab={letter: place for place, letter in enumerate(letters)}, merges=[]))
    made.decoder = decoders.ByteLevel()
    made.add_tokens([AddedToken(piece, normalized=False) for piece in PIECES])
    return made


def _store(folder: Path, *, forget: bool = False) -> None:
    with Store.open(Home(folder)) as store:
        take_in(store)
        if forget:
            Retention(store, RetentionPolicy(max_bytes=0)).run_once()


def _reduced(folder: Path) -> None:
    """Another run records statistics only."""
    with Recorder(folder, REDUCED, raw_fraction=0.0, worst_sequences=0) as recorder:
        rollout, trainer = _logprobs(np.random.default_rng(5), (4, LENGTH))
        for step in range(2):
            assert recorder.training(
                step=step, sample_ids=[f"{step}/{index}" for index in range(4)], token_ids=list(np.full((4, LENGTH), 7)),
                rollout_logprobs=list(rollout), trainer_logprobs=list(trainer),
            )  # fmt: skip


def _record(recorder: Recorder, step: int) -> None:
    rng = np.random.default_rng(step)
    samples = [f"{name} {step}" for name in SAMPLES]
    shape = (len(samples), LENGTH)
    tokens = rng.integers(256, 256 + len(PIECES), shape)
    tokens[:, : len(PIECES)] = 256 + np.arange(len(PIECES))
    tokens[:, -2:] = BYTES
    rollout, trainer = _logprobs(rng, shape)
    mask = np.ones(shape, bool)
    mask[TOOLS, :8] = mask[TOOLS, 14:20] = mask[TOOLS, 26:28] = False
    if step >= FIRST_BROKEN:
        _break(rollout[0], trainer[0])
    for index, sample in enumerate(samples):
        if index != ALONE:
            sampled = mask[index]
            recorder.rollout(
                sample_ids=[sample], token_ids=[tokens[index][sampled] + (index == OTHER)], logprobs=[rollout[index][sampled]],
                weight_version=[[(0, 15, str(step)), (15, int(sampled.sum()), str(step + 1))]], replica="engine-0",
            )  # fmt: skip
    assert recorder.training(
        step=step, sample_ids=samples, token_ids=list(tokens), trainer_logprobs=list(trainer), mask=list(mask), weight_version=str(step + 1),
        current_logprobs=list(np.minimum(trainer + 0.01, -1e-9).astype(np.float32)), advantages=rng.normal(size=len(samples)),
        entropy=list(rng.exponential(1.0, shape).astype(np.float32)), tags={"environment": "<svg onload=alert(1)>\u202e"},
    )  # fmt: skip
    assert recorder.step(step, loss=0.1)


def _logprobs(
    rng: np.random.Generator, shape: tuple[int, int]
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
    rollout = -rng.exponential(1.0, shape)
    trainer = np.minimum(rollout + 0.3 * rng.normal(size=shape), -1e-9)
    return rollout.astype(np.float32), trainer.astype(np.float32)


def _break(rollout: npt.NDArray[np.float32], trainer: npt.NDArray[np.float32]) -> None:
    """One token of each kind that cannot be a log-prob."""
    rollout[20], trainer[21], trainer[22], rollout[23] = math.nan, math.inf, -math.inf, -9999.0
    rollout[24], rollout[25], trainer[25] = 0.5, 0.0, -4.0
