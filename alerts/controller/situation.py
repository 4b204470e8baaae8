"""Facts for the controller's decisions, and the memory of its actions, as plain data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from typing import Any, Self

from logprobe.alerts.controller.policy import Mode
from logprobe.collectors.correction import CorrectionConfig
from logprobe.monitor.judging.document import FindingDocument, alarms
from logprobe.monitor.judging.signatures import bounded


@dataclass(frozen=True, slots=True)
class Preview:
    """Preview of a correction on recorded tokens. Numbers are None if not measurable."""

    steps: tuple[int, int]  # first and last step looked at
    tokens: int
    masked_tokens: float  # shares between 0 and 1
    masked_sequences: float
    masked_advantage: float | None
    weight_ess: float | None
    ess: float | None = None  # of the ratios before the correction
    k3: float | None = None
    kept_k3: float | None = None  # of the tokens that the correction keeps
    length: float | None = None  # mean tokens of a sequence
    kept_length: float | None = None  # the same, each sequence weighted by its share of kept tokens

    @property
    def words(self) -> str:
        """Text with the masked share and the effect on K3, ESS and lengths."""
        changes = (
            ("K3", self.k3, self.kept_k3),
            ("ESS", self.ess, self.weight_ess),
            ("mean length", self.length, self.kept_length),
        )
        told = [f"{name} {was:.3g} → {now:.3g}" for name, was, now in changes if was is not None and now is not None]
        does = f" ({', '.join(told)})" if told else ""
        return f"it would mask {self.masked_tokens:.1%} of the tokens{does}"


@dataclass(frozen=True, slots=True)
class Trial:
    """One correction with its preview on recorded tokens, or None if there is none."""

    config: CorrectionConfig
    preview: Preview | None


@dataclass(frozen=True, slots=True)
class Acknowledgement:
    """Reports of ranks about one step with the same configuration: fingerprint, or None, and masked shares."""

    step: int
    fingerprint: str | None
    masked: float | None  # share of their tokens


@dataclass(frozen=True, slots=True)
class Returned:
    """Directive for the present step of a run that returned to a checkpoint before its last switch."""

    config: CorrectionConfig | None = None  # None: no correction
    from_step: int | None = None  # first step with it; None: it was told nothing


@dataclass(frozen=True, slots=True)
class Situation:
    """State of one run at one moment, the input of the controller's decision."""

    step: int  # newest one with metrics
    verdict: (
        str  # of the diagnosis: "healthy" | "watch" | "unknown" | "growing" | "critical" | "calibrating" | "no_data"
    )
    findings: Sequence[FindingDocument] = ()
    diagnosed_step: int | None = None  # newest one that the diagnosis has seen; None: that is not known
    advice: str | None = None  # of the diagnosis: "enable" | "do_not_enable" | "not_needed"; None: it does not say
    why: str = ""  # that advice, in words
    grown_since: int | None = None  # first step of the growth; None: it does not grow, or that is not known
    doubling_steps: float | None = None  # in which K3 doubles; None: it does not, or that is not known
    coverage: float | None = None  # smallest of the recent steps; None: unknown
    trials: tuple[Trial, ...] = ()  # corrections that were tried, in order; those after one that passes are not
    acknowledgements: tuple[Acknowledgement, ...] = ()  # of the steps since the last directive
    stopped: bool = False  # kill switch
    recount: float | None = (
        None  # share of the tokens masked in the steps that the trainer reports on, counted here; None: not needed, or not possible
    )
    heard: bool = True  # whether the newest step was made late enough for its trainer to know of the newest directive
    impossible: str = ""  # why the trainer says that it cannot apply what it was told; "": it does not say so
    returned: Returned | None = None  # None: the steps up to the last switch still count
    effect: Mapping[str, Any] | None = None  # see `effect.judge`; None: not due, or not measurable yet

    @property
    def fault(self) -> FindingDocument | None:
        """Finding that forbids a correction, or None. Semantic findings take precedence."""
        vetoing = [finding for finding in self.findings if finding["vetoes"]]
        return min(vetoing, key=lambda finding: finding["layer"] != "semantic", default=None)

    @property
    def stale(self) -> str:
        """Return the remedy if old weights explain growth, or ""."""
        stale = (f["evidence"] for f in self.findings if f["cause"] == "staleness" and alarms(f))
        return next((bounded("bound the weight lag", evidence) for evidence in stale), "")


class Phase(StrEnum):
    """Phase of one run's correction."""

    IDLE = "idle"  # never switched on
    SUGGESTED = "suggested"
    ISSUED = "issued"  # the trainer was told, and has not said that it does so
    APPLIED = "applied"
    WITHDRAWN = "withdrawn"  # was on; taken back


@dataclass(frozen=True, slots=True)
class Control:
    """Memory of the controller about one run. Immutable, with conversion to JSON by `document` and from JSON by
    `parse`.
    """

    phase: Phase = Phase.IDLE
    mode: Mode | None = None  # what a person chose for this run; None: the policy's
    config: CorrectionConfig | None = None  # of the last directive
    from_step: int | None = None
    masked_from: int | None = (
        None  # first step that the trainer corrected since it last did not; None: not acknowledged
    )
    applied_from: int | None = None  # … with this configuration
    previewed: float | None = None  # masked share of tokens that the preview found
    switches: int = 0
    switched_at: tuple[int, ...] = ()  # the steps of those that a return to a checkpoint has not undone
    last_switch: int | None = None  # step of it
    grown_since: int | None = None  # first step of the growth for which it was switched on; None: not known
    said: tuple[
        str, ...
    ] = ()  # actions since the last switch that are given once, each as `Action.name` and what about
    waiting: str | None = (
        None  # why the verdict leads to no correction, as of the last look; None: it does, or calls for none
    )
    objection: str | None = None  # `Refusal.reason` behind `waiting`; None: nothing speaks against a correction
    impossible: tuple[str, ...] = ()  # fingerprints of what the trainer could not apply
    suspect: str | None = None  # finding upstream that stands now, while a correction is on
    suspect_since: int | None = None  # step at which it was first seen
    stopped: bool = False

    @property
    def on(self) -> bool:
        """Return whether a correction is in effect according to the controller's decisions."""
        return self.phase in {Phase.ISSUED, Phase.APPLIED}

    def document(self) -> dict[str, object]:
        """Return JSON-like data."""
        return {**asdict(self), "config": None if self.config is None else self.config.to_dict()}

    @classmethod
    def parse(cls, document: Mapping[str, Any]) -> Self:
        """Return the control that `document` serialized. Raise `KeyError`, `TypeError` or `ValueError`."""
        config, mode = document["config"], document["mode"]
        control = cls(**{name: value for name, value in document.items() if name not in {"config", "mode", "phase"}})
        return replace(
            control,
            phase=Phase(document["phase"]),
            mode=None if mode is None else Mode(mode),
            said=tuple(document["said"]),
            impossible=tuple(document["impossible"]),
            switched_at=tuple(document["switched_at"]),
            config=None if config is None else CorrectionConfig.from_dict(config),
        )


@dataclass(frozen=True, slots=True)
class Action:
    """Action or refusal of the controller, a line of the audit and usually a message."""

    name: str  # "suggested" | "switched_on" | "refused" | "acknowledged" | "not_acknowledged" | "rolled_back" | …
    reason: str  # identifier
    words: str
    severity: str = "info"  # "info" | "warning" | "critical"
    details: Mapping[str, Any] = field(default_factory=dict)
