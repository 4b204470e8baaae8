"""Facts about a run for the controller, read from the store and previewed with the trainer's own code."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any, Final, Self, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from logprobe.alerts.controller import decide, effect, refusals
from logprobe.alerts.controller.policy import Policy
from logprobe.alerts.controller.situation import (
    Acknowledgement,
    Control,
    Phase,
    Preview,
    Returned,
    Situation,
    Trial,
)
from logprobe.collectors.correction import CorrectionConfig, Report, correct
from logprobe.collectors.correction.report import quotient
from logprobe.collectors.directives import Directives
from logprobe.monitor import queries
from logprobe.monitor.judging.measures import k3_of
from logprobe.monitor.queries import Source
from logprobe.monitor.ragged import float_lists
from logprobe.monitor.reader import Reader
from logprobe.monitor.store.store import Store

_COVERAGE_STEPS: Final = 20
_PREVIEW_STEPS: Final = 5
_MOST_PREVIEWED: Final = 2_000_000  # tokens
_MOST_CELLS: Final = 1_000_000  # of a padded batch
_HEARD_SECONDS: Final = 5.0  # a switch looks twice a second, a shipper once, and clocks differ
_ACKNOWLEDGED_STEPS: Final = 50  # back from the newest step, in which acknowledgements are looked at

Reading: TypeAlias = Store | Reader


@dataclass(frozen=True, slots=True)
class Known:
    """Latest diagnosis, newest seen step and lowest recent coverage of each run."""

    diagnosis: Mapping[str, Any]  # as `DiagnosisDocument`; only verdict and findings where there is none
    diagnosed_step: int | None
    coverage: float | None


def trained_steps(source: Source) -> dict[str, int]:
    """Return the step that each run's newest records are of, for the runs with computed steps."""
    rows = queries.runs_now(source).to_pylist()
    return {row["run"]: row["trained_step"] for row in rows if row["trained_step"] is not None}


def look(store: Reading, steps: Mapping[str, int]) -> dict[str, Known]:
    """Read several runs in one pass, each with its newest step. Raise `QueryError`."""
    diagnosed = {row["run"]: row for row in queries.diagnosis_kept(store, runs=list(steps)).to_pylist()}
    covered = queries.controller_coverage(
        store,
        runs=list(steps),
        first=[step - _COVERAGE_STEPS + 1 for step in steps.values()],
        last=list(steps.values()),
    ).to_pylist()
    return {row["run"]: _known(diagnosed.get(row["run"]), row["coverage"]) for row in covered}


def _known(diagnosed: Mapping[str, Any] | None, coverage: float | None) -> Known:
    if diagnosed is None:
        return Known({"verdict": "no_data", "findings": []}, None, coverage)
    return Known(json.loads(diagnosed["document"]), diagnosed["step"], coverage)


def gather(
    store: Reading,
    run: str,
    step: int,
    control: Control,
    policy: Policy,
    *,
    stopped: bool,
    previewing: bool = False,
    seen: Known | None = None,
    directives: Directives | None = None,
) -> Situation:
    """Return the situation of `run` at `step`, the newest step with metrics. Raise `QueryError`.

    `previewing`: true to read raw tokens in any case. `seen`: result of `look`, or None to read it. `directives`:
    directives of the trainer, or None to ignore returns to a checkpoint.
    """
    seen = seen or look(store, {run: step})[run]
    ahead = [known for known in (control.last_switch, seen.diagnosed_step) if known is not None and known > step]
    given_up = queries.controller_abandoned(store, run=run, steps=ahead)["step"].to_pylist() if ahead else []
    if seen.diagnosed_step in given_up:
        seen = _known(None, seen.coverage)
    advice = seen.diagnosis.get("correction") or {}
    situation = Situation(
        step=step,
        verdict=seen.diagnosis["verdict"],
        findings=seen.diagnosis["findings"],
        diagnosed_step=seen.diagnosed_step,
        advice=advice.get("advice"),
        why=advice.get("why", ""),
        grown_since=(seen.diagnosis.get("growth") or {}).get("since_step"),
        doubling_steps=seen.diagnosis.get("doubling_steps"),
        coverage=seen.coverage,
        stopped=stopped,
    )
    if directives is not None and control.last_switch in given_up:
        return replace(situation, returned=_told_for(step, directives))
    if control.on:
        situation = replace(situation, **_trainer_reports(store, run, control, situation))
        recounted = decide.recount_step(control, situation, policy)
        if control.config is not None and recounted is not None:
            (counted,) = trials(store, run, recounted, [control.config])
            situation = replace(situation, recount=None if counted.preview is None else counted.preview.masked_tokens)
    wanted = refusals.tries(control, policy) if previewing else decide.wanted_trials(control, situation, policy)
    if not wanted:
        return situation
    return replace(situation, trials=trials(store, run, step, wanted, until=lambda trial: _passes(trial, policy)))


def _told_for(step: int, directives: Directives) -> Returned:
    """Return the directive that applies in `step`, ignoring the kill switch."""
    entry = replace(directives, stopped=False).at(step)
    return Returned() if entry is None else Returned(entry.config, entry.from_step)


def _passes(trial: Trial, policy: Policy) -> bool:
    return refusals.objection(trial, policy) is None


def trials(
    store: Reading,
    run: str,
    step: int,
    configs: Sequence[CorrectionConfig],
    *,
    until: Callable[[Trial], bool] = lambda _: False,
) -> tuple[Trial, ...]:
    """Preview each of `configs` on the raw tokens of the steps up to `step`, until `until` accepts one.

    A preview is None without tokens, or if the configuration needs unknown advantages.
    """
    table = queries.peer_tokens(store, run=run, first=_first_previewed(store, run, step), last=step)
    numbers = table["step"].unique().to_pylist()
    steps = {number: _Columns.of(table.filter(pc.equal(table["step"], number))) for number in numbers}
    tried: list[Trial] = []
    for config in configs:
        tried.append(Trial(config, _preview(steps, config)))
        if until(tried[-1]):
            break
    return tuple(tried)


def _first_previewed(store: Reading, run: str, step: int) -> int:
    """Return the first step of a preview, a few steps back, or fewer for steps with very many tokens."""
    rows = queries.cli_steps(store, run=run, first=step - _PREVIEW_STEPS + 1, last=step).to_pylist()
    newest_first = sorted(rows, key=lambda row: -row["step"])
    before = accumulate((row["tokens"] for row in newest_first), initial=0)
    return min(
        (row["step"] for row, tokens in zip(newest_first, before, strict=False) if tokens < _MOST_PREVIEWED),
        default=step,
    )


@dataclass(frozen=True, slots=True)
class _Columns:
    """Tokens of one step, as lists of arrays. `complete`: true if every token under the mask has an advantage."""

    rollout: list[Any]
    trainer: list[Any]
    mask: list[Any]
    advantage: list[Any]
    complete: bool

    @classmethod
    def of(cls, table: pa.Table) -> Self:
        rollout, trainer, mask, advantage = (
            float_lists(table[name]) for name in ("rollout", "trainer", "mask", "advantage")
        )
        complete = all(np.isfinite(values[kept > 0]).all() for values, kept in zip(advantage, mask, strict=True))
        return cls(rollout, trainer, mask, advantage, complete)


def _preview(steps: Mapping[int, _Columns], config: CorrectionConfig) -> Preview | None:
    corrected = ((number, _corrected(columns, config)) for number, columns in steps.items())
    reports = {number: made for number, made in corrected if made is not None}
    tokens = int(sum(report["tokens"] or 0.0 for report, _ in reports.values()))
    if not tokens:
        return None
    merged = Report.merge(*(report for report, _ in reports.values()))
    kept = np.sum([sums for _, sums in reports.values()], 0)
    k3, kept_k3, length, kept_length = (quotient(kept[at], kept[at + 1]) for at in range(0, len(kept), 2))
    return Preview(
        steps=(min(reports), max(reports)),
        tokens=tokens,
        masked_tokens=merged["masked_frac"] or 0.0,
        masked_sequences=merged["masked_seq_frac"] or 0.0,
        masked_advantage=merged["masked_advantage_frac"],
        weight_ess=merged["ess_after"],
        ess=merged["ess_before"],
        k3=k3,
        kept_k3=kept_k3,
        length=length,
        kept_length=kept_length,
    )


def _corrected(columns: _Columns, config: CorrectionConfig) -> tuple[Report, NDArray[np.float64]] | None:
    """Return the trainer's expected report for one step's tokens and `_kept` of them, or None if an advantage that it
    needs is unknown.

    Sequences of similar length are batched to limit padding, with a bounded number of tokens per batch. The normalizer
    of weights changes neither masks nor effective sample size.
    """
    if config.needs_advantages and not columns.complete:
        return None
    plain = config.replace(normalize=False)
    parts, kept = [], []
    for chosen in _batches([len(values) for values in columns.mask]):
        rollout, trainer, before = (
            [column[index] for index in chosen] for column in (columns.rollout, columns.trainer, columns.mask)
        )
        advantages = [columns.advantage[index] for index in chosen] if columns.complete else None
        _, after, report = correct(plain, rollout, trainer, before, advantages=advantages)
        report.start()  # until its sums are taken it holds the whole batch
        parts.append(report)
        kept.append(_kept(rollout, trainer, before, after))
    return Report.merge(*parts), np.sum(kept, 0)


def _kept(rollout: list[Any], trainer: list[Any], mask: list[Any], kept: list[Any]) -> NDArray[np.float64]:
    """Return numerators and denominators of K3, K3 of the kept tokens, mean length, and mean length by kept shares."""
    sums = np.zeros(8)
    for r, t, before, after in zip(rollout, trainer, mask, kept, strict=True):
        inside, left = np.asarray(before) > 0, np.asarray(after) > 0
        k3 = k3_of(np.asarray(t, np.float64) - np.asarray(r, np.float64))
        sound = inside & np.isfinite(k3)
        share = left.sum() / max(inside.sum(), 1)
        sums += (
            *(k3[sound].sum(), sound.sum(), k3[sound & left].sum(), (sound & left).sum()),
            *(inside.sum(), inside.any(), left.sum(), share),
        )
    return sums


def _batches(lengths: Sequence[int]) -> Iterator[list[int]]:
    """Yield indices of sequences, shortest first, in batches that take at most `_MOST_CELLS` cells when padded."""
    batch: list[int] = []
    for index in sorted(range(len(lengths)), key=lengths.__getitem__):
        if batch and (len(batch) + 1) * lengths[index] > _MOST_CELLS:
            yield batch
            batch = []
        batch.append(index)
    yield batch


def _trainer_reports(store: Reading, run: str, control: Control, situation: Situation) -> dict[str, Any]:
    """Return the trainer's recent reports, and the effect of the correction if its judgement is due."""
    first, step = decide.since(control), situation.step
    recent = _acknowledgements(store, run, max(first, step - _ACKNOWLEDGED_STEPS), step + _ACKNOWLEDGED_STEPS)
    reports: dict[str, Any] = {"acknowledgements": recent}
    if control.phase is Phase.ISSUED:
        (heard,) = queries.controller_heard(store, run=run, first=first).to_pylist()
        reports |= {"impossible": heard["impossible"] or "", "heard": _has_heard(heard)}
    if decide.effect_due(control, step):
        reports["effect"] = judged(store, run, control)
    return reports


def _has_heard(row: queries.ControllerHeard) -> bool:
    """Return whether the trainer knew the directive at its newest step. Records of a fast run may predate it."""
    return row["made"] is None or row["told"] is None or (row["made"] - row["told"]).total_seconds() >= _HEARD_SECONDS


def _acknowledgements(store: Reading, run: str, first: int, last: int) -> tuple[Acknowledgement, ...]:
    rows = queries.controller_acks(store, run=run, first=first, last=last).to_pylist()
    return tuple(Acknowledgement(row["step"], row["fingerprint"], row["masked"]) for row in rows)


def judged(store: Source, run: str, control: Control) -> effect.Effect:
    """Judge the newest correction of `run` at the present time with `effect.judge`. Raise `QueryError`."""
    applied = decide.applied(control)
    masked = applied if control.masked_from is None else control.masked_from
    grown = control.grown_since
    first = masked if grown is None else min(masked, grown)
    trend = queries.controller_trend(
        store, run=run, first=first - effect.REACH * effect.STEPS, last=applied + effect.STEPS
    )
    return effect.judge(trend, masked, applied, grown_since=grown)
