"""How a run is doing right now, for the rules that look at no single step: diagnosis, acknowledgements, signs of life."""

from __future__ import annotations

import json
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from logprobe.alerts.liveness import Writer
from logprobe.alerts.rules import deadman
from logprobe.alerts.rules.deadman import Pulse
from logprobe.alerts.rules.observation import Observation
from logprobe.alerts.rules.rule import DeadMan, Diagnosed, Rule, Unacknowledged
from logprobe.monitor.slices import Source


@dataclass(frozen=True, slots=True)
class Present:
    """What is known of a run apart from its steps.

    Attributes:
        pulse: its signs of life.
        findings: of the newest diagnosis, as `Finding.document` has them; None: there was none yet.
        diagnosed: newest step that the diagnosis has seen; None: there was none yet.
        control: what the correction's controller remembers of the run; None: nothing.
    """

    pulse: Pulse
    findings: Sequence[Mapping[str, Any]] | None = None
    control: Mapping[str, Any] | None = None
    diagnosed: int | None = None


class Presents:
    """The present of each run, read again only once it may be another: reading it costs more than all else that a quiet second does."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._known: dict[str, tuple[Hashable, Present]] = {}

    def of(self, run: str, mark: Hashable) -> Present:
        """That of `run`. `mark`: another one whenever anything of it may have changed."""
        known = self._known.get(run)
        if known is None or known[0] != mark:
            known = self._known[run] = (mark, read(self._source, run))
        return known[1]


def read(source: Source, run: str) -> Present:
    """The present of a run, from a service or a store."""
    row = source.read("alert_pulse", run=run).to_pylist()[0]
    row["rollouts"] = row.pop("rollout_segments") > 0
    pulse = Pulse(**{**row, "writers": [Writer(**writer) for writer in row["writers"] or ()]})
    control = source.read("controller_read", run=run).to_pylist()
    diagnosis = source.read("diagnosis_latest", run=run).to_pylist()
    return Present(
        pulse=pulse,
        findings=json.loads(diagnosis[0]["document"])["findings"] if diagnosis else None,
        control=json.loads(control[0]["control"]) if control else None,
        diagnosed=diagnosis[0]["step"] if diagnosis else None,
    )


def observe(rules: Sequence[Rule], present: Present, now: datetime) -> dict[str, Observation]:
    """What the rules that look at the present make of it, by rule name."""
    observations = {rule.name: _observe(rule, present, now) for rule in rules}
    return {name: observation for name, observation in observations.items() if observation is not None}


def _observe(rule: Rule, present: Present, now: datetime) -> Observation | None:
    if isinstance(rule.when, DeadMan):
        return deadman.observe(rule.when, present.pulse, now)
    if isinstance(rule.when, Diagnosed):
        return _diagnosed(rule.when, present.findings)
    if isinstance(rule.when, Unacknowledged):
        return _unacknowledged(present.control)
    return None


def _diagnosed(when: Diagnosed, findings: Sequence[Mapping[str, Any]] | None) -> Observation:
    if findings is None:
        return Observation("missing", "the run was not diagnosed yet")
    meant = [finding for finding in findings if finding["cause"] in when.causes or finding["layer"] in when.layers]
    sure = [finding for finding in meant if finding["confidence"] >= when.confidence]
    if not sure:
        return Observation("good", "the diagnosis found no such cause")
    worst = max(sure, key=lambda finding: float(finding["confidence"]))
    return Observation(
        "bad",
        worst["explanation"],
        since_step=worst["since_step"],
        cause=worst["cause"],
        layer=worst["layer"],
        fix=worst["fix"],
    )


def _unacknowledged(control: Mapping[str, Any] | None) -> Observation:
    if control is None:
        return Observation("missing", "no correction was ever switched on")
    if control.get("phase") == "issued" and control.get("ack_missed"):
        return Observation("bad", f"the correction from step {control.get('from_step')} on is not confirmed")
    return Observation("good", "no correction waits for a confirmation")
