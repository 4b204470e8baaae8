"""The recorded runs: the same policy, tasks and trainer; what differs is how engine and trainer are put together."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final, Literal


@dataclass(frozen=True, slots=True)
class Scenario:
    """One way of running engine and trainer.

    Attributes:
        name: of the run.
        steps: how many to record.
        story: what is to be seen in it and why.
        layer: of the fault, or "none".
        temperature: of sampling; the trainer divides its logits by the same.
        logprobs_mode: of the engine; None leaves the default, raw log-probs: temperature not applied.
        pause: how requests in flight are treated at a weight update, see `RolloutEngine.update`.
        clear_cache: whether cached prefixes are forgotten at a weight update.
        passes_rollout_logprobs: whether the trainer records r as it received it; otherwise it is joined with the engine's record.
        backlog: sampled batches that wait for the trainer: each adds one step of staleness.
        backlog_grows_from: step from which the backlog grows; None: never.
        backlog_grows_every: steps between two such increments.
        largest_backlog: where it stops growing.
        controlled: whether a monitor service watches, armed to switch a correction on, and the trainer asks it at every step.
        dtype: in which engine and trainer compute; the trainer's weights and the optimizer's state stay in float32.
        cache_kept_from: step from which cached prefixes survive weight updates although `clear_cache`; None: never.
    """

    name: str
    steps: int
    story: str
    layer: str
    temperature: float
    logprobs_mode: str | None
    pause: Literal["idle", "keep", "abort"]
    clear_cache: bool
    passes_rollout_logprobs: bool
    backlog: int = 0
    backlog_grows_from: int | None = None
    backlog_grows_every: int = 1
    largest_backlog: int = 0
    controlled: bool = False
    dtype: Literal["float32", "bfloat16"] = "float32"
    cache_kept_from: int | None = None

    def backlog_at(self, step: int) -> int:
        """Batches that wait in front of the one that `step` trains on."""
        if self.backlog_grows_from is None or step < self.backlog_grows_from:
            return self.backlog
        grown = 1 + (step - self.backlog_grows_from) // self.backlog_grows_every
        return min(self.backlog + grown, self.largest_backlog)

    def clears_cache_at(self, step: int) -> bool:
        """Whether cached prefixes are forgotten at the weight update of `step`."""
        return self.clear_cache and (self.cache_kept_from is None or step < self.cache_kept_from)

    def beginning_at(self, step: int) -> Scenario:
        """The same with another onset."""
        name = "cache_kept_from" if self.backlog_grows_from is None else "backlog_grows_from"
        return replace(self, **{name: step})

    @property
    def onset_step(self) -> int | None:
        """First step of what makes the gap grow; None: nothing does."""
        return self.cache_kept_from if self.backlog_grows_from is None else self.backlog_grows_from


V0_REFERENCE: Final = Scenario(
    name="v0-reference",
    steps=300,
    story="Processed log-probs, weights updated between batches, prefix cache cleared at every update: engine and trainer agree.",
    layer="none",
    temperature=0.85,
    logprobs_mode="processed_logprobs",
    pause="idle",
    clear_cache=True,
    passes_rollout_logprobs=True,
)

V1_INITIAL: Final = Scenario(
    name="v1-initial",
    steps=300,
    story=(
        "Engine defaults left as they are: raw log-probs although sampling is at a temperature other than 1 (semantic layer), and "
        "a prefix cache that survives weight updates made while requests are in flight (inference-path layer)."
    ),
    layer="semantic, inference path",
    temperature=0.85,
    logprobs_mode=None,
    pause="keep",
    clear_cache=False,
    passes_rollout_logprobs=False,
)

LATE_GROWTH: Final = Scenario(
    name="late-growth",
    steps=800,
    story=(
        "Correct log-probs and a healthy asynchronous run, one step off-policy; then sampled batches pile up in front of the trainer "
        "and every batch is trained on later than the one before: staleness, the objective layer."
    ),
    layer="objective",
    temperature=0.7,
    logprobs_mode="processed_logprobs",
    pause="idle",
    clear_cache=True,
    passes_rollout_logprobs=False,
    backlog=1,
    backlog_grows_from=500,
    backlog_grows_every=25,
    largest_backlog=12,
)

LATE_GROWTH_MIS: Final = replace(
    LATE_GROWTH,
    name="late-growth-mis",
    story=(
        "late-growth with the service at work: it sees mismatch grow in the objective layer, finds nothing wrong upstream, and switches "
        "masked importance sampling on; the trainer applies it from the announced step and says so."
    ),
    controlled=True,
)

RAW_GROWTH: Final = Scenario(
    name="raw-growth",
    steps=140,
    story=(
        "Growth by staleness on top of an engine that reports raw log-probs at a temperature other than 1 (semantic layer). The "
        "service is armed, sees both, and refuses to correct the objective: the engine has to be mended first."
    ),
    layer="semantic, objective",
    temperature=0.9,
    logprobs_mode=None,
    pause="idle",
    clear_cache=True,
    passes_rollout_logprobs=False,
    backlog_grows_from=60,
    largest_backlog=16,
    controlled=True,
)

LATE_GROWTH_BF16: Final = Scenario(
    name="late-growth-bf16",
    steps=640,
    story=(
        "An ordinary bfloat16 run: engine and trainer compute in bfloat16, and their gap stays at the level of its rounding for 500 steps. "
        "Then sampled batches pile up in front of the trainer: staleness, the objective layer. The service is armed, accepts the "
        "rounding as expected, and switches masked importance sampling on once mismatch grows; the trainer acknowledges it."
    ),
    layer="objective",
    temperature=0.7,
    logprobs_mode="processed_logprobs",
    pause="idle",
    clear_cache=True,
    passes_rollout_logprobs=False,
    backlog_grows_from=500,
    backlog_grows_every=20,
    largest_backlog=12,
    controlled=True,
    dtype="bfloat16",
)

CACHE_GROWTH_BF16: Final = replace(
    LATE_GROWTH_BF16,
    name="cache-growth-bf16",
    steps=400,
    story=(
        "late-growth-bf16 with another cause of the growth: from step 240 on the prefix cache survives weight updates, and answers go "
        "on from keys and values of older and older weights (inference-path layer). The service is armed, sees mismatch grow, "
        "and refuses to correct the objective: the cache has to be cleared."
    ),
    layer="inference path",
    backlog_grows_from=None,
    largest_backlog=0,
    cache_kept_from=240,
)

V1_FIXED: Final = Scenario(
    name="v1-fixed",
    steps=300,
    story=(
        "v1-initial with its three faults mended: processed log-probs, requests in flight aborted and sampled again after an update, "
        "prefix cache cleared: back on the reference."
    ),
    layer="none",
    temperature=0.85,
    logprobs_mode="processed_logprobs",
    pause="abort",
    clear_cache=True,
    passes_rollout_logprobs=False,
)

SCENARIOS: Final[dict[str, Scenario]] = {
    scenario.name: scenario
    for scenario in (
        V0_REFERENCE,
        V1_INITIAL,
        LATE_GROWTH,
        LATE_GROWTH_MIS,
        RAW_GROWTH,
        LATE_GROWTH_BF16,
        CACHE_GROWTH_BF16,
        V1_FIXED,
    )
}
