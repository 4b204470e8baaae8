"""Scenarios of alerts: a YAML file with rules, series in, transitions and messages out.

    name: what it shows
    rules: …                      # as in a rule file; `defaults: false` unless it says otherwise
    series:                       # metric, or metric{slice} → values; one per step
      backend.k3_kl: 1x20 3x10 null 1x5
    silences / acknowledgements   # optional
    diagnoses: {7: [raw_logprobs], 9: []}   # optional: findings by the newest step that the diagnosis had seen; `cause@since`
    transitions:                  # "step rule before>after", in order; of a diagnosis: the step it had seen
    messages:                     # "step rule word"

Values: `1x20` is 20 times 1, `1..2x5` five steps from 1 to 2, `null` is not measured; `same`/`differ` for the metric `identity`.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import yaml

from logprobe.alerts.rules import rule_file, run_status
from logprobe.alerts.rules.judging import evaluation
from logprobe.alerts.rules.judging.evaluation import Alert, Context, Message, Transition
from logprobe.alerts.rules.judging.mutes import Acknowledgement, Silence
from logprobe.alerts.rules.judging.observation import StepFacts
from logprobe.alerts.rules.present_conditions import Pulse, RunStatus
from logprobe.monitor.analysis import identity

START = datetime(2026, 3, 1, tzinfo=UTC)
RUN = "run"


def at(step: int) -> datetime:
    """When a step was recorded: one a minute."""
    return START + timedelta(minutes=step)


def values(text: str) -> list[float | str | None]:
    """A series, term by term."""
    found: list[float | str | None] = []
    for term in str(text).split():
        word, _, count = term.partition("x")
        low, _, high = word.partition("..")
        number = int(count or 1)
        if low in {"null", "same", "differ"}:
            found += [None if low == "null" else low] * number
        else:
            found += np.linspace(float(low), float(high), number).tolist() if high else [float(low)] * number
    return found


def steps(series: dict[str, str]) -> list[StepFacts]:
    """The steps of a scenario."""
    columns = {name: values(text) for name, text in series.items()}
    length = max(len(column) for column in columns.values())
    assert all(len(column) == length for column in columns.values()), {n: len(c) for n, c in columns.items()}
    return [_step(step, {name: column[step] for name, column in columns.items()}) for step in range(length)]


def _step(step: int, row: dict[str, Any]) -> StepFacts:
    known: dict[tuple[str, str | None], float | None] = {}
    parts: dict[str, tuple[str, ...]] = {}
    same = None
    for name, value in row.items():
        metric, _, part = name.rstrip("}").partition("{")
        if metric == "identity":
            same = None if value is None else _identity(step, differs=value == "differ")
        elif part and value is None:
            continue  # the slice has no sequence in this step
        else:
            known[metric, part or None] = value
            if part:
                dimension, _, label = part.partition("=")
                parts[dimension] = (*parts.get(dimension, ()), label)
    return StepFacts(step, at(step), known, parts, same)


def _identity(step: int, *, differs: bool) -> identity.StepFacts:
    return identity.StepFacts(step, 100, 100, 90 if differs else 100, 4, 4)


def rules_of(document: dict[str, Any]):
    """The rules of a scenario, through the reader of rule files."""
    content = {"defaults": False, **document["rules"]}
    return rule_file.parse(yaml.safe_dump(content, sort_keys=False), "scenario.yaml").for_run(RUN)


def context_of(document: dict[str, Any], step: int) -> Context:
    """What else decides at a step: the clock goes with the steps."""
    silences = [
        Silence(str(i), entry["matchers"], "ann", entry.get("reason", "known"), at(entry["from"]), at(entry["to"]))
        for i, entry in enumerate(document.get("silences", []))
    ]
    acknowledged = {
        entry["episode"]: Acknowledgement(
            entry["episode"], "bob", "on it", at(entry["at"]), at(entry["until"]) if "until" in entry else None
        )
        for entry in document.get("acknowledgements", [])
        if entry["at"] <= step
    }
    return Context(RUN, now=at(step), silences=silences, acknowledgements=acknowledged)


def play(document: dict[str, Any]) -> Iterator[tuple[list[Alert], list[Transition], list[Message]]]:
    """The scenario step by step."""
    rules = rules_of(document)
    alerts = evaluation.begin(rules)
    for facts in steps(document["series"]):
        context = context_of(document, facts.step)
        for result in evaluation.through_steps(alerts, rules, [facts], context):
            alerts = result[0]
            yield result
        seen, known = diagnosis_at(document, facts.step)
        if seen is not None:
            observations = run_status.observe(rules, known, at(facts.step))
            alerts, moved = evaluation.evaluate_status(alerts, observations, at(facts.step), diagnosed=seen)
            alerts, messages = evaluation.notify(alerts, context, step=facts.step, at=at(facts.step))
            yield alerts, moved, messages


def diagnosis_at(document: dict[str, Any], step: int) -> tuple[int | None, RunStatus]:
    """The newest diagnosis that there is at a step."""
    seen = max((known for known in document.get("diagnoses", ()) if known <= step), default=None)
    found = None if seen is None else [_finding(text) for text in document["diagnoses"][seen]]
    pulse = Pulse(step, at(step), at(step), 60.0, relies_on_engine=0, rollouts=True, writers=[])
    return seen, RunStatus(pulse, findings=found)


def _finding(text: str) -> dict[str, Any]:
    cause, _, since = text.partition("@")
    return {
        "cause": cause, "layer": "semantic", "confidence": 0.9, "explanation": cause, "fix": "mend it",
        "since_step": int(since) if since else None,
    }  # fmt: skip


def named(alert: Alert) -> str:
    """Rule and slice."""
    return alert.rule.name + (f"{{{alert.slice}}}" if alert.slice else "")


def _step_of(moved: Transition) -> int | None:
    return moved.alert.step if moved.step is None else moved.step


def outcome(document: dict[str, Any]) -> dict[str, list[str]]:
    """What the scenario came to, as it is written in YAML."""
    transitions, messages = [], []
    for _, moved, sent in play(document):
        transitions += [f"{_step_of(t)} {named(t.alert)} {t.before.value}>{t.alert.state.phase.value}" for t in moved]
        messages += [f"{m.step} {named(m.alert)} {m.word}" for m in sent]
    return {"transitions": transitions, "messages": messages}
