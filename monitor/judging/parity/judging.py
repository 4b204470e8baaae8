"""Comparison of a run with its reference, in setup and in behaviour.

    parity = compare(reader, "v1", reference="v0")             # against a run of the same data directory
    parity = compare(reader, "v1", recipe=parity_recipe.shipped())   # against a recipe alone

In a comparison of two runs, a requirement counts only if the reference meets it. Other differing settings are listed
but do not affect the verdict.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final, Literal, TypeAlias

from logprobe.monitor import queries
from logprobe.monitor.judging.document import Layer
from logprobe.monitor.judging.parity import recipe as parity_recipe
from logprobe.monitor.judging.parity.facts import Facts, facts_of
from logprobe.monitor.judging.parity.recipe import Outcome, Recipe
from logprobe.monitor.judging.parity.trajectories import Trajectory, Trend, follow
from logprobe.monitor.queries import Source

Verdict: TypeAlias = Literal["at_parity", "not_at_parity", "unknown"]

_SHOWN: Final = 3  # settings of a check, in a reason
# Names, places and sizes of a run that say nothing of what its engine computes.
_PERSONAL: Final = (
    "engine.model", "engine.tokenizer", "config.model_config.model", "config.model_config.tokenizer",
    "config.model_config.served_model_name", "trainer.scenario.",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Setting:
    """One fact on both sides: whether known, its value, and whether the engine's arguments set it."""

    fact: str
    known: bool
    value: Any
    provenance: str | None
    reference_known: bool = False
    reference: Any = None
    reference_provenance: str | None = None

    @property
    def words(self) -> str:
        """Return the value as text."""
        return _words(self.value, recorded=self.known)

    @property
    def reference_words(self) -> str:
        """Return the reference's value as text."""
        return _words(self.reference, recorded=self.reference_known)


@dataclass(frozen=True, slots=True)
class Check:
    """One requirement of the recipe, or one fact that must be equal, with the compared settings."""

    name: str
    layer: Layer | None
    expected: str
    outcome: Outcome
    reference: Outcome | None
    why: str
    fix: str
    settings: tuple[Setting, ...]

    @property
    def verdict(self) -> Verdict:
        """Return the verdict for parity."""
        if self.outcome in {"met", self.reference}:
            return "at_parity"
        return "unknown" if self.outcome == "unknown" else "not_at_parity"


@dataclass(frozen=True, slots=True)
class Parity:
    """The comparison of a run with its reference.

    Attributes:
        run: name of the run.
        reference: the reference run, or the name of the recipe.
        verdict: not at parity if a check or trajectory fails, else unknown if one is unknown.
        reasons: reasons for the verdict, most relevant first, empty at parity.
        checks: requirements, then facts that must be equal, in the recipe's order.
        trajectories: compared metrics, empty without a reference run.
        differences: other differing settings.
    """

    run: str
    reference: str
    verdict: Verdict
    reasons: tuple[str, ...]
    checks: tuple[Check, ...]
    trajectories: tuple[Trajectory, ...]
    differences: tuple[Setting, ...]

    def document(self) -> dict[str, object]:
        """Return the JSON-ready form, which ``logprobe compare --recipe --json`` prints."""
        checks = [{**asdict(check), "verdict": check.verdict} for check in self.checks]
        return {**asdict(self), "checks": checks}


def compare(
    source: Source, run: str, *, reference: str | None = None, recipe: Recipe | None = None, name: str = "recipe"
) -> Parity:
    """Compare a run with a reference run, with a recipe, or with both.

    Args:
        source: a `Reader` or a `Store`.
        run: name of the run.
        reference: a run of the same data directory, or None for the recipe alone.
        recipe: recipe, or None for the shipped one.
        name: name of the recipe in the result.

    Raises:
        QueryError: the read failed, see `Reader.read`.
    """
    recipe = recipe or parity_recipe.shipped()
    ours = facts_of(source, run)
    theirs = None if reference is None else facts_of(source, reference)
    checks = (*_requirements(recipe, ours, theirs), *_same(recipe, ours, theirs))
    trajectories = tuple(_trajectories(source, recipe, run, reference)) if reference is not None else ()
    verdict, reasons = _verdict(checks, trajectories)
    differences = tuple(_differences(recipe, ours, theirs)) if theirs is not None else ()
    return Parity(run, reference or name, verdict, reasons, checks, trajectories, differences)


def _requirements(recipe: Recipe, ours: Facts, theirs: Facts | None) -> Iterable[Check]:
    for item in recipe.requirements:
        reference = None if theirs is None else item.outcome(theirs)
        yield Check(
            item.name,
            item.layer,
            item.words,
            item.outcome(ours),
            reference,
            item.why,
            item.fix,
            tuple(_setting(fact, ours, theirs) for fact in item.facts),
        )


def _same(recipe: Recipe, ours: Facts, theirs: Facts | None) -> Iterable[Check]:
    for fact in recipe.same if theirs is not None else ():
        setting = _setting(fact, ours, theirs)
        equal: Outcome = "met" if setting.value == setting.reference else "violated"
        both_recorded = setting.known and setting.reference_known
        reference: Outcome = "met" if setting.known or setting.reference_known else "unknown"
        yield Check(
            name=f"{fact} as the reference",
            layer=None,
            expected=setting.reference_words,
            outcome=equal if both_recorded else "unknown",
            reference=reference,
            why="it decides what the engine computes",
            fix=f"{fact} = {setting.reference_words}",
            settings=(setting,),
        )


def _setting(fact: str, ours: Facts, theirs: Facts | None) -> Setting:
    return Setting(fact, *_side(fact, ours), *_side(fact, theirs or {}))


def _side(fact: str, facts: Facts) -> tuple[bool, Any, str | None]:
    value = _values(fact, facts)
    return fact in facts, value, _provenance(fact, facts)


def _provenance(fact: str, facts: Facts) -> str | None:
    """Return "set" or "left to vLLM", or None for other settings and unrecorded arguments."""
    known = fact in facts and fact.startswith(("engine.", "config."))
    if not known or not any(name.startswith("arguments.") for name in facts):
        return None
    return "set" if f"arguments.{fact.rpartition('.')[2]}" in facts else "left to vLLM"


def _values(fact: str, facts: Facts) -> Any:
    """Return the value, or an ordered list of several, or None if unknown or null."""
    values = facts.get(fact, (None,))
    return values[0] if len(values) == 1 else sorted(values, key=repr)


def _trajectories(source: Source, recipe: Recipe, run: str, reference: str) -> Iterable[Trajectory]:
    metrics = [band.metric for band in recipe.trajectories]
    ours, theirs = trends(source, run, metrics), trends(source, reference, metrics)
    for band in recipe.trajectories:
        yield follow(band, ours.get(band.metric, {}), theirs.get(band.metric, {}))


def trends(source: Source, run: str, metrics: Iterable[str]) -> Mapping[str, Trend]:
    """Return the values of `metrics`, by metric. Raises the errors of the source."""
    by_metric: dict[str, dict[int, float]] = {}
    rows = queries.app_points(source, run=run, since=-1, metrics=list(metrics))
    columns = (rows[name].to_pylist() for name in ("metric", "step", "value"))
    for metric, step, value in zip(*columns, strict=True):
        by_metric.setdefault(metric, {})[step] = value
    return by_metric


def differing(recipe: Recipe, ours: Facts, theirs: Facts) -> tuple[tuple[Setting, ...], tuple[Setting, ...]]:
    """Return the settings that differ between both sides: those of `recipe` in its order, and the others."""
    relevant = (_setting(fact, ours, theirs) for fact in recipe.relevant if ours.get(fact) != theirs.get(fact))
    return tuple(relevant), tuple(_differences(recipe, ours, theirs))


def _verdict(checks: tuple[Check, ...], trajectories: tuple[Trajectory, ...]) -> tuple[Verdict, tuple[str, ...]]:
    worst = [check for check in checks if check.verdict == "not_at_parity"]
    open_ = [check for check in checks if check.verdict == "unknown"]
    left = [trajectory.reason for trajectory in trajectories if trajectory.verdict == "leaves"]
    if worst or left:
        return "not_at_parity", (*map(_reason, worst), *left)
    silent = [f"{item.label}: {item.reason}" for item in trajectories if item.verdict == "unknown"]
    if open_ or (silent and len(silent) == len(trajectories)):
        return "unknown", (*(f"unknown: {_reason(check)}" for check in open_), *silent)
    return "at_parity", ()


def _reason(check: Check) -> str:
    shown = [f"{item.fact} = {item.words}" for item in check.settings[:_SHOWN]]
    return f"{check.name}: {', '.join(shown)}{', …' if len(check.settings) > _SHOWN else ''}"


def _words(value: Any, *, recorded: bool) -> str:
    if not recorded:
        return "not recorded"
    if isinstance(value, list):
        return ", ".join(_words(item, recorded=True) for item in value)
    return parity_recipe.spoken(value)


def _differences(recipe: Recipe, ours: Facts, theirs: Facts) -> Iterable[Setting]:
    """Return the other differing settings. Omit the engine's own name of a setting that the recipe covers."""
    looked_at = {fact.rpartition(".")[2] for fact in recipe.relevant}
    for fact in sorted({*ours, *theirs} - {*recipe.relevant}):
        twice = fact.startswith("config.") and fact.rpartition(".")[2] in looked_at
        if ours.get(fact) != theirs.get(fact) and not twice and not fact.startswith(_PERSONAL):
            yield _setting(fact, ours, theirs)
