"""How fast the numbers are: the sufficient statistics against the formulas trainers use, and the step job on a long run."""

from __future__ import annotations

import time
from collections.abc import Callable
from importlib.util import find_spec

import numpy as np
import numpy.typing as npt
import torch
from figure import Figure

from logprobe.collectors.kernel.statistics import COLUMNS, sequence_statistics

Seconds = npt.NDArray[np.float64]

SEQUENCES, TIME = 4882, 4096  # one step's batch of 1e7 valid tokens, and as many of padding
ROUNDS = 5


def measure() -> list[Figure]:
    """All figures of this module; those beside verl only where it is installed (`make campaign NAME=cost-verl`)."""
    return [*statistics_figures(), *verl_figures()]


def batch() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rollout and trainer log-probs [batch, time] and lengths [batch], float32, half of it padding."""
    rng = np.random.default_rng(0)
    lengths = rng.permutation(np.linspace(1, TIME - 1, SEQUENCES).astype(np.int64))
    rollout = -0.5 * rng.standard_exponential((SEQUENCES, TIME), np.float32)
    trainer = np.minimum(rollout + 0.03 * rng.standard_normal(rollout.shape, np.float32), 0)
    return rollout, trainer, lengths


def statistics_figures() -> list[Figure]:
    rollout, trainer, lengths = batch()
    mask = np.arange(TIME) < lengths[:, None]
    flat = rollout[mask], trainer[mask]
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    padded = torch.from_numpy(rollout), torch.from_numpy(trainer), torch.from_numpy(mask.astype(np.float32))
    torch.set_num_threads(1)
    rounds = interleaved(lambda: sequence_statistics(*flat, None, offsets), lambda: usual_formulas(*padded))
    ours, usual = rounds.min(axis=0).tolist()
    tokens = int(mask.sum())
    speed, baseline = tokens / ours / 1e6, tokens / usual / 1e6
    note = f"{ROUNDS} × {tokens:,} valid tokens, one thread each; {len(COLUMNS)} columns in float64"
    return [
        Figure("statistics", speed, "Mtok/s", "≥ 40", speed >= 40, "padded float32 torch", baseline, note),
        Figure("statistics over usual formulas", speed / baseline, "×", "≥ 10", speed / baseline >= 10),
    ]


def verl_figures() -> list[Figure]:
    """Beside verl's own function, which is given the same tokens as its trainer has them: padded float32, an int64 mask."""
    if find_spec("verl") is None:
        return []
    from verl.trainer.ppo.rollout_corr_helper import (
        compute_offpolicy_metrics,
        compute_rollout_correction_and_rejection_mask,
    )

    rollout, trainer, lengths = batch()
    mask = np.arange(TIME) < lengths[:, None]
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    flat = rollout[mask], trainer[mask]
    old, sampled, valid = (torch.from_numpy(each) for each in (trainer, rollout, mask.astype(np.int64)))
    torch.set_num_threads(1)
    rounds = interleaved(
        lambda: sequence_statistics(*flat, None, offsets),
        lambda: sequence_statistics(rollout[mask], trainer[mask], None, offsets),
        lambda: compute_offpolicy_metrics(old, sampled, valid),
        lambda: compute_rollout_correction_and_rejection_mask(old, sampled, valid, rollout_is="token"),
    )
    return [
        beside_verl("verl's metrics", rounds[:, 2], rounds, 6),
        beside_verl("verl's metrics and importance weights", rounds[:, 3], rounds, 18),
    ]


def beside_verl(what: str, verl: Seconds, rounds: Seconds, goal: float) -> Figure:
    """How many times as fast, by the best round of each; by the median, and with unpadding counted as ours, in the note."""
    flat, padded = rounds[:, 0], rounds[:, 1]
    ratio = verl.min() / flat.min()
    note = (
        f"{ROUNDS} rounds in turns, one thread each: best {verl.min():.2f} s and {flat.min():.2f} s; medians "
        f"{np.median(verl) / np.median(flat):.1f} ×; {verl.min() / padded.min():.1f} × with the padding removed in our time"
    )
    return Figure(f"statistics over {what}", float(ratio), "×", f"≥ {goal:g}", bool(ratio >= goal), note=note)


def interleaved(*calls: Callable[[], object]) -> Seconds:
    """Seconds of each call in rounds that take turns, shape [rounds, calls]."""
    return np.array([[clock(call) for call in calls] for _ in range(ROUNDS)])


def clock(call: Callable[[], object]) -> float:
    started = time.perf_counter()
    call()
    return time.perf_counter() - started


def usual_formulas(rollout: torch.Tensor, trainer: torch.Tensor, mask: torch.Tensor) -> dict[str, float]:
    """KL, K3, perplexities, χ² and importance-sampling statistics the way trainers log them, on padded float32."""
    counts = mask.sum(-1).clamp(min=1)

    def token_mean(x: torch.Tensor) -> torch.Tensor:
        return (x * mask).sum() / mask.sum()

    def sequence_means(x: torch.Tensor) -> torch.Tensor:
        return (x * mask).sum(-1) / counts

    log_ratio = trainer - rollout
    ratio = torch.exp(log_ratio.clamp(-20, 20))
    trained, sampled, offset = sequence_means(trainer), sequence_means(rollout), sequence_means(log_ratio)
    truncated = ratio.clamp(max=2.0)
    mean = token_mean(truncated)
    return {
        "kl": token_mean(-log_ratio).item(),
        "k3_kl": token_mean(torch.exp(log_ratio) - log_ratio - 1).item(),
        "training_ppl": torch.exp(-trained).mean().item(),
        "rollout_ppl": torch.exp(-sampled).mean().item(),
        "log_ppl_diff": (sampled - trained).mean().item(),
        "log_ppl_abs_diff": (sampled - trained).abs().mean().item(),
        "log_ppl_diff_max": (sampled - trained).max().item(),
        "log_ppl_diff_min": (sampled - trained).min().item(),
        "ppl_ratio": torch.exp(sampled - trained).mean().item(),
        "chi2_token": token_mean(ratio**2).item() - 1,
        "chi2_seq": (torch.exp(2 * offset).mean() - 1).item(),
        "logprob_abs_diff": token_mean(log_ratio.abs()).item(),
        "logprob_abs_diff_max": (log_ratio.abs() * mask).max().item(),
        "prob_abs_diff": token_mean((torch.exp(trainer) - torch.exp(rollout)).abs()).item(),
        "is_mean": mean.item(),
        "is_std": (token_mean(truncated**2) - mean**2).clamp(min=0).sqrt().item(),
        "is_max": truncated.masked_fill(mask == 0, float("-inf")).max().item(),
        "is_min": truncated.masked_fill(mask == 0, float("inf")).min().item(),
        "is_fraction_high": token_mean((ratio > 2.0).float()).item(),
        "is_fraction_low": token_mean((ratio < 0.5).float()).item(),
        "ess": (1 / token_mean((truncated / mean) ** 2)).item(),
        "is_seq_mean": sequence_means(truncated).mean().item(),
        "is_seq_std": sequence_means(truncated).std().item(),
    }
