"""What the controller sees of a run: read from the store, and previewed with the very code that the trainer would run."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np
import pyarrow as pa

from logprobe.alerts.controller import decide, effect
from logprobe.alerts.controller.policy import Policy
from logprobe.alerts.controller.situation import Acknowledgement, Control, Preview, Situation, Standing
from logprobe.collectors.correction import CorrectionConfig, Report, correct
from logprobe.monitor.ragged import float_lists
from logprobe.monitor.store import Store

_CALM: Final = ("healthy", "calibrating", "no_data")
_COVERAGE_STEPS: Final = 10
_PREVIEW_STEPS: Final = 5
_MOST_PREVIEWED: Final = 2_000_000  # tokens


def look(
    store: Store,
    run: str,
    step: int,
    control: Control,
    policy: Policy,
    *,
    diagnosis: Mapping[str, Any] | None,
    stopped: bool,
    previewing: bool = False,
) -> Situation:
    """The situation of `run` whose newest step with metrics is `step`. Raises `QueryError`.

    `diagnosis`: its latest document; None: there is none. `previewing`: read raw tokens although the verdict does not ask for it.
    """
    found = diagnosis or {"verdict": "no_data", "findings": []}
    acknowledgements = _acknowledgements(store, run, control) if control.on else ()
    situation = Situation(
        step=step,
        verdict=found["verdict"],
        findings=tuple(_standing(finding) for finding in found["findings"]),
        coverage=_coverage(store, run, step),
        acknowledgements=acknowledgements,
        stopped=stopped,
    )
    if decide.effect_due(control, step, policy):
        judged = _effect(store, run, decide.since(control), policy.effect_steps, acknowledgements)
        return replace(situation, effect=judged)
    if not control.on and (
        previewing or situation.verdict not in _CALM
    ):  # raw tokens are read only when they may be needed
        return replace(situation, preview=preview(store, run, step, policy.correction))
    return situation


def preview(store: Store, run: str, step: int, config: CorrectionConfig) -> Preview | None:
    """What `config` would have done to the raw tokens of the steps up to `step`; None: none are kept."""
    reports: dict[int, Report] = {}
    tokens = 0.0
    for number in range(step, step - _PREVIEW_STEPS, -1):
        table = store.read("peer_tokens", run=run, step=number)
        if table.num_rows:
            reports[number] = _corrected(table, config)
            tokens += reports[number]["tokens"] or 0.0
        if tokens >= _MOST_PREVIEWED:
            break
    if not tokens:
        return None
    merged = Report.merge(*reports.values())
    return Preview(
        steps=(min(reports), max(reports)),
        tokens=int(tokens),
        masked_tokens=merged["masked_frac"] or 0.0,
        masked_sequences=merged["masked_seq_frac"] or 0.0,
        masked_advantage=merged["masked_advantage_frac"],
        weight_ess=merged["ess_after"],
    )


def _corrected(table: pa.Table, config: CorrectionConfig) -> Report:
    """What the trainer would have reported for one step's tokens."""
    columns = [float_lists(table[name]) for name in ("rollout", "trainer", "mask", "advantage")]
    rollout, trainer, mask, advantage = columns
    known = all(np.isfinite(values).all() for values in advantage)
    return correct(config, rollout, trainer, mask, advantages=advantage if known else None).report


def _standing(finding: Mapping[str, Any]) -> Standing:
    return Standing(finding["cause"], finding["layer"], finding["confidence"], finding.get("explanation", ""))


def _coverage(store: Store, run: str, step: int) -> float | None:
    value: float | None = store.read("controller_coverage", run=run, first=step - _COVERAGE_STEPS + 1, last=step)[
        "coverage"
    ][0].as_py()
    return value


def _acknowledgements(store: Store, run: str, control: Control) -> tuple[Acknowledgement, ...]:
    rows = store.read("controller_acks", run=run, first=control.from_step).to_pylist()
    return tuple(_acknowledgement(row["step"], row["correction"]) for row in rows)


def _acknowledgement(step: int, correction: str | None) -> Acknowledgement:
    """A step's record names the correction as JSON; whatever else stands there acknowledges nothing."""
    try:
        document = json.loads(correction or "null")
        return Acknowledgement(step, document["fingerprint"], document["report"]["masked_frac"])
    except (ValueError, LookupError, TypeError, AttributeError):
        return Acknowledgement(step, None, None)


def _effect(
    store: Store, run: str, since: int, window: int, acknowledgements: Sequence[Acknowledgement]
) -> dict[str, Any] | None:
    table = store.read("controller_series", run=run, first=since - window, last=since + window)
    shares = [ack.masked for ack in acknowledgements if ack.masked is not None]
    return effect.judge(_series(table), since, window, masked=sum(shares) / len(shares) if shares else None)


def _series(table: pa.Table) -> dict[str, effect.Series]:
    steps = table["step"].to_numpy()
    columns = {effect.K3: "k3", **{name: name for name in effect.SCALARS}}
    return {
        name: (steps, table[column].cast(pa.float64()).to_numpy(zero_copy_only=False))
        for name, column in columns.items()
    }
