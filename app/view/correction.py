"""State and effect of a run's correction, and its preview on recent steps."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, replace
from typing import Any, Final, TypedDict

from logprobe.alerts.controller import refusals
from logprobe.alerts.controller.effect import STEPS, WORDS, Figure
from logprobe.alerts.controller.gather import gather, judged, trained_steps
from logprobe.alerts.controller.policy import POLICY, InForce, load, stated
from logprobe.alerts.controller.refusals import refusal
from logprobe.alerts.controller.situation import Phase
from logprobe.alerts.controller.standing import Standing
from logprobe.app.surface.arguments import require_run
from logprobe.app.text.diagnosis import evidence_name
from logprobe.app.text.numbers import number, quantity
from logprobe.collectors.correction import CorrectionConfig
from logprobe.collectors.correction.presets import preset
from logprobe.collectors.directives import DirectiveFile
from logprobe.monitor.home import Home
from logprobe.monitor.reader import FlightReader, Reader, open_reader

_PHASES: Final = {
    "idle": "never switched on",
    "suggested": "not switched on",
    "issued": "the directive was issued, and the trainer has not acknowledged it",
    "applied": "acknowledged by the trainer",
    "withdrawn": "was on, and is off",
}
_OF_CORRECTION: Final = frozenset({"masked", "weight_ess"})  # that there is none of without one
_WITHIN_ONE: Final = frozenset({"masked", "ess", "weight_ess"})


class Refused(TypedDict):
    """Objection to a correction (see `refusals.Refusal`)."""

    reason: str
    words: str
    about: str | None


class Foreseen(TypedDict):
    """Effect of a correction on the recorded recent steps.

    `preview`: statistics, or None if no tokens are kept. `refusal`: objection, or None. `instead`: accepted milder
    correction, or None.
    """

    run: str
    step: int
    config: Mapping[str, Any]
    fingerprint: str
    preview: Mapping[str, Any] | None
    refusal: Refused | None
    instead: Mapping[str, Any] | None


class EffectWords(TypedDict):
    """Effect of a correction. `judgement`: judgement of `Effect`, or "unknown" if another version of logprobe made it.
    `step`: step of the judgement, or None before the judgement.
    """

    judgement: str
    words: str
    step: int | None


class CorrectionState(TypedDict):
    """State of the correction of a run. `from_step`: first corrected step, or None without any correction."""

    run: str
    mode: str
    phase: str
    waiting: str | None
    stopped: bool
    from_step: int | None
    config: Mapping[str, Any]
    problem: str | None
    effect: EffectWords | None
    figures: list[Figure]
    actions: list[Mapping[str, Any]]


def foresee(home: Home, run: str, name: str | None = None) -> Foreseen:
    """Compute the effect of the policy's correction, or of the preset `name`, on recent steps, and objections to it.

    Raises `ConfigurationError` for an unknown run or preset.
    """
    policy = load(home.path)(run)
    policy = policy if name is None else policy.model_copy(update={"correction": preset(name)})
    with open_reader(home) as reader:
        steps = trained_steps(reader)
        require_run(run, list(steps))
        control = replace(Standing.read(reader, run).control, phase=Phase.IDLE, impossible=())  # as if it were off
        stopped = DirectiveFile(home.path, run).stop_path.exists()
        situation = gather(reader, run, steps[run], control, policy, stopped=stopped, previewing=True)
    against = refusal(situation, control, policy)
    first, chosen = situation.trials[0], refusals.chosen(situation, policy)
    veto = refusals.objection(first, policy) if against is None else against
    return {
        "run": run,
        "step": steps[run],
        "config": first.config.to_dict(),
        "fingerprint": first.config.fingerprint(),
        "preview": None if first.preview is None else asdict(first.preview),
        "refusal": None if veto is None else {"reason": veto.reason, "words": veto.words, "about": veto.about},
        "instead": None if against is not None or chosen in {None, first} else chosen.config.to_dict(),
    }


def foreseen(document: Foreseen) -> list[tuple[str, str]]:
    """Return the document of `foresee` as names and texts."""
    preview: Mapping[str, Any] = document["preview"] or {}
    shares = ("masked_tokens", "masked_sequences", "masked_advantage", "ess", "weight_ess")
    beside = ("k3", "kept_k3", "length", "kept_length")
    return [
        ("run", f"{document['run']}, step {document['step']}"),
        ("correction", str(CorrectionConfig.from_dict(document["config"]))),
        ("previewed on", "steps {} to {}, {} tokens".format(*preview["steps"], preview["tokens"]) if preview else "–"),
        *((name.replace("_", " "), _share(preview.get(name))) for name in shares),
        *((evidence_name(name), "–" if preview.get(name) is None else number(preview[name])) for name in beside),
        *((("instead", str(CorrectionConfig.from_dict(document["instead"]))),) if document["instead"] else ()),
        ("refusal", "none" if document["refusal"] is None else "{reason}: {words}".format(**document["refusal"])),
    ]


def _share(value: float | None) -> str:
    return "–" if value is None else f"{value:.2%}"


def state_of(reader: Reader, home: Home, run: str, standing: Standing) -> CorrectionState:
    """Return the state of the correction of a run with its policy. Raises the `QueryError` of the reader."""
    control, policy = standing.control, _policy(home, reader, run)
    effect, figures = _effect(reader, run, standing)
    return {
        "run": run,
        "mode": control.mode or policy["mode"],
        "phase": control.phase,
        "waiting": control.waiting,
        "stopped": DirectiveFile(home.path, run).stop_path.exists(),
        "from_step": control.from_step,
        "config": policy["config"] if control.config is None else control.config.to_dict(),
        "problem": policy["problem"],
        "effect": effect,
        "figures": figures,
        "actions": list(standing.actions),
    }


def _policy(home: Home, reader: Reader, run: str) -> InForce:
    """Return the policy in force, from the service or, without a service, from the settings file. Raises
    `ConfigurationError`.
    """
    if isinstance(reader, FlightReader):
        policy: InForce = reader.act(POLICY, {"run": run})
        return policy
    return {**stated(load(home.path)(run)), "problem": None}


def _effect(reader: Reader, run: str, standing: Standing) -> tuple[EffectWords | None, list[Figure]]:
    """Return the effect of the newest correction, or None without a correction. Before a judgement, return its numbers
    alone.
    """
    if standing.control.from_step is None:
        return None, []
    told = standing.effect
    if told is not None and "figures" in (stored := told["details"]):
        return {"judgement": stored["judgement"], "words": told["words"], "step": told["step"]}, stored["figures"]
    so_far = judged(reader, run, standing.control)
    if told is not None:  # by another version, with numbers of its own: the figures are what the steps say now
        return {"judgement": "unknown", "words": told["words"], "step": told["step"]}, so_far["figures"]
    message = f"{WORDS['too_early']}: {so_far['steps']} of {STEPS} steps since the trainer began to correct"
    return {"judgement": "too_early", "words": message, "step": None}, so_far["figures"]


def in_short(state: CorrectionState) -> list[tuple[str, str]]:
    """Return mode, phase, first step and configuration as names and texts."""
    stopped = "; the kill switch is set, so no correction applies" if state["stopped"] else ""
    first = "" if state["from_step"] is None else f", from step {state['from_step']:,}"
    phase = f"{state['phase']}{first}: {_PHASES.get(state['phase'], 'see the audit')}"
    return [
        ("controller", f"{state['mode']}, {phase}{stopped}"),
        ("method", str(CorrectionConfig.from_dict(state["config"]))),
    ]


def words(state: CorrectionState) -> Iterator[tuple[str, str]]:
    """Yield state and effect of the correction as names and texts."""
    yield from in_short(state)
    yield "waiting", state["waiting"] or ""
    yield "policy", state["problem"] or ""
    yield "effect", effect_words(state)
    for figure in state["figures"]:
        before, after, change = changed(figure)
        yield evidence_name(figure["name"]), f"{before} before, {after} after; change: {change}"


def effect_words(state: CorrectionState) -> str:
    """Return the effect of the correction with the step of its judgement, or "" without a correction."""
    effect = state["effect"]
    if effect is None:
        return ""
    as_of = "" if effect["step"] is None else f", as of step {effect['step']:,}"
    return f"{effect['words']}{as_of}"


def changed(figure: Figure) -> tuple[str, str, str]:
    """Return a quantity before and after the switch, and its change, each with its interval."""
    unit, new = figure["unit"], figure["name"] in _OF_CORRECTION and figure["before"] is None
    before = "no correction" if new else _estimate(figure["name"], figure["before"], unit)
    return before, _estimate(figure["name"], figure["after"], unit), "–" if new else _change(figure)


def _estimate(name: str, estimate: Mapping[str, Any] | None, unit: str) -> str:
    if estimate is None:
        return "–"
    ends = [estimate["low"], estimate["high"]]
    if name in _WITHIN_ONE:  # an interval of a share ends where shares do
        ends = [min(max(end, 0.0), 1.0) for end in ends]
    return f"{quantity(estimate['value'], unit)} ({number(ends[0])} to {number(ends[1])})"


def _change(figure: Figure) -> str:
    change = figure["change"]
    if change is None:
        return "– (one side is not measured)"
    value, low, high = (
        f"×{number(end)}" if figure["factor"] else f"{'+' if end > 0 else ''}{number(end)}"
        for end in (change["value"], change["low"], change["high"])
    )
    return f"{value} ({low} to {high})" if figure["sure"] else f"{value} ({low} to {high}): no significant change"
