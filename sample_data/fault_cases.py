"""The faults as data: what engine, weight updates, glue code and trainer do in each short run, and which cause is expected."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final, Literal

PROCESSED: Final = {"logprobs_mode": "processed_logprobs"}


@dataclass(frozen=True, slots=True)
class Size:
    """Of a policy.

    Attributes:
        vocabulary: tokens of the byte-pair tokenizer.
        hidden: width.
        layers: depth.
        heads: of attention; keys and values have half as many.
        experts: 0 for a dense model, else experts per layer, of which two are active.
        steps: of pretraining.
    """

    vocabulary: int = 512
    hidden: int = 128
    layers: int = 3
    heads: int = 4
    experts: int = 0
    steps: int = 1200

    def __str__(self) -> str:
        return "-".join(str(value) for value in asdict(self).values())


@dataclass(frozen=True, slots=True)
class Scale:
    """How much is recorded.

    Attributes:
        size: of the policy.
        steps: of the run.
        prompts: per step.
        answers: per prompt.
        tokens: of an answer, at most.
        preamble: tokens that all prompts open with, as a system prompt does.
        learning_rate: of AdamW.
    """

    size: Size = field(default_factory=Size)
    steps: int = 16
    prompts: int = 8
    answers: int = 3
    tokens: int = 48
    preamble: int = 0
    learning_rate: float = 2e-4


@dataclass(frozen=True, slots=True)
class View:
    """How the trainer recomputes log-probs.

    Attributes:
        temperature: what logits are divided by; None: the temperature of sampling.
        dtype: of the whole forward pass.
        head_dtype: of the last matrix product, where it differs.
        top_p: below 1: the trainer renormalises over the nucleus, and everything outside gets −inf.
        padded_to: vocabulary rows the trainer's softmax runs over; those beyond the tokenizer's are zero.
        offset: position whose logits are read for a token, relative to the right one.
    """

    temperature: float | None = None
    dtype: str = "float32"
    head_dtype: str | None = None
    top_p: float = 1.0
    padded_to: int | None = None
    offset: int = 0


@dataclass(frozen=True, slots=True)
class Miss:
    """Which part of which weight update does not arrive, although the version label advances.

    Attributes:
        tensors: pattern of the names of what is sent as it was in the last update that arrived.
        first: version that misses first.
        every: every so many versions from there on.
        replica: the engine that misses; None: all.
        loads: whether a load is carried out at all (of old tensors) or only the label moves.
    """

    tensors: str = ""
    first: int = 1
    every: int = 1
    replica: str | None = None
    loads: bool = True

    def concerns(self, version: int, replica: str | None) -> bool:
        """Whether update `version` of `replica` is one that misses."""
        here = self.replica is None or self.replica == replica
        return here and version >= self.first and (version - self.first) % self.every == 0


@dataclass(frozen=True, slots=True)
class Backlog:
    """Sampled batches that wait in front of the trainer: each adds one step of lag."""

    depth: int = 0
    grows_from: int | None = None
    grows_every: int = 1

    def at(self, step: int) -> int:
        """Batches waiting in `step`."""
        if self.grows_from is None or step < self.grows_from:
            return self.depth
        return self.depth + 1 + (step - self.grows_from) // self.grows_every


@dataclass(frozen=True, slots=True)
class Case:
    """One short run.

    Attributes:
        name: of the run, and of its folder.
        causes: expected, the first one first; empty: healthy.
        layer: of the first cause.
        story: what is wrong, for people.
        acceptable: causes that may also be named, or named instead of the first.
        engine: `EngineArgs`.
        sampling: `SamplingParams`.
        view: the trainer's.
        replicas: names of the engines.
        pause: how requests in flight are treated at an update; "idle": there are none.
        clear_cache: whether cached prefixes are forgotten at an update.
        miss: what does not arrive of the updates.
        weight_bits: weights are rounded to so many on their way to the engine, row by row; None: not at all.
        backlog: what waits in front of the trainer.
        glue: name of a function in `fault_glue` that samples pass on their way to the trainer.
        silent: every so many prompts the request does not ask for log-probs; 0: all do.
        jump: (step, factor): the learning rate is multiplied from this step on.
        received: whether the trainer records r as it received it; else it is joined with the engine's record.
        plugin: whether the engine is watched.
        scale: how much is recorded.
    """

    name: str
    causes: tuple[str, ...]
    layer: str
    story: str
    acceptable: tuple[str, ...] = ()
    engine: Mapping[str, Any] = field(default_factory=lambda: PROCESSED)
    sampling: Mapping[str, Any] = field(default_factory=lambda: {"temperature": 1.0})
    view: View = View()
    replicas: tuple[str | None, ...] = (None,)
    pause: Literal["idle", "keep"] = "idle"
    clear_cache: bool = True
    miss: Miss | None = None
    weight_bits: int | None = None
    backlog: Backlog = Backlog()
    glue: str | None = None
    silent: int = 0
    jump: tuple[int, float] | None = None
    received: bool = False
    plugin: bool = True
    scale: Scale = field(default_factory=Scale)

    def scaled(self, **changes: Any) -> Case:
        """The same with another scale."""
        return replace(self, scale=replace(self.scale, **changes))

    def settings(self) -> dict[str, Any]:
        """How it is set up, without what a diagnosis has to find out."""
        answers = {"causes", "acceptable", "layer", "story"}
        return {key: value for key, value in asdict(self).items() if key not in answers}

    def expected(self) -> dict[str, Any]:
        """What a diagnosis should say, as it stands in ``expected.json``."""
        return {
            "causes": list(self.causes),
            "acceptable": list(self.acceptable),
            "layer": self.layer,
            "story": self.story,
        }


WARM: Final = {"temperature": 0.7}
SEMANTIC, PATH, OBJECTIVE = "semantic", "inference_path", "objective"

_HEALTHY: Final = (
    Case(
        "healthy", (), "none", "Processed log-probs at T = 0.7, updates between batches, cache cleared.", sampling=WARM
    ),
    Case(
        "healthy_top_p",
        (),
        "none",
        "Sampled with top-p 0.9; the trainer truncates its own distribution to the same nucleus.",
        sampling={"temperature": 0.7, "top_p": 0.9},
        view=View(top_p=0.9),
        received=True,
    ),
    Case("healthy_untempered", (), "none", "T = 1, raw log-probs: nothing is processed, so raw is right.", engine={}),
)

_SEMANTIC: Final = (
    Case(
        "raw_logprobs",
        ("raw_logprobs",),
        SEMANTIC,
        "vLLM's default logprobs_mode at T = 0.7; the trainer divides by the temperature.",
        engine={},
        sampling=WARM,
    ),
    Case(
        "temperature_mismatch",
        ("temperature_mismatch",),
        SEMANTIC,
        "Sampled and reported at T = 0.7; the trainer forgets the temperature.",
        sampling=WARM,
        view=View(temperature=1.0),
    ),
    Case(
        "truncated_top_p",
        ("truncated_support",),
        SEMANTIC,
        "Sampled and reported with top-p 0.9; the trainer does not truncate.",
        sampling={"temperature": 1.0, "top_p": 0.9},
    ),
    Case(
        "truncated_top_k",
        ("truncated_support",),
        SEMANTIC,
        "Sampled and reported with top-k 20; the trainer does not truncate.",
        sampling={"temperature": 1.0, "top_k": 20},
    ),
    Case(
        "truncated_min_p",
        ("truncated_support",),
        SEMANTIC,
        "Sampled and reported with min-p 0.05; the trainer does not truncate.",
        sampling={"temperature": 1.0, "min_p": 0.05},
    ),
    Case(
        "raw_logits",
        ("unnormalized_logits",),
        SEMANTIC,
        "The engine reports logits instead of log-probs.",
        engine={"logprobs_mode": "raw_logits"},
    ),
    Case(
        "processed_logits",
        ("unnormalized_logits",),
        SEMANTIC,
        "The engine reports logits, divided by the temperature, instead of log-probs.",
        engine={"logprobs_mode": "processed_logits"},
        sampling=WARM,
    ),
    Case(
        "structured_output",
        ("structured_output_mask",),
        SEMANTIC,
        "The grammar of a structured output masks the engine's logits; the trainer's softmax runs over everything.",
        sampling={"temperature": 1.0, "structured_outputs": {"regex": r"[a-z]+( [a-z]+){4,12}\."}},
    ),
    Case(
        "allowed_tokens",
        ("structured_output_mask",),
        SEMANTIC,
        "Only some tokens are allowed in the engine; the trainer's softmax runs over everything.",
        acceptable=("truncated_support",),
        sampling={"temperature": 1.0, "allowed_token_ids": [2, *range(200, 500)]},
    ),
    Case(
        "vocab_padding",
        ("vocab_padding",),
        SEMANTIC,
        "The trainer's vocabulary is padded with rows of zeros, which take probability in its softmax.",
        view=View(padded_to=768),
    ),
    Case(
        "synthetic_eos",
        ("synthetic_eos",),
        SEMANTIC,
        "Answers cut off by the length limit get an end token that was never sampled, with log-prob 0.",
        glue="append_end",
        received=True,
    ),
    Case(
        "misaligned_tokens",
        ("misaligned_tokens",),
        SEMANTIC,
        "The trainer reads the logits one position too late.",
        view=View(offset=1),
    ),
    Case(
        "retokenization",
        ("retokenization",),
        SEMANTIC,
        "Answers travel as text and are encoded again by the trainer, which gives other token ids.",
        glue="retokenize",
    ),
    Case(
        "nonfinite_logprobs",
        ("nonfinite_logprobs",),
        SEMANTIC,
        "The trainer truncates to a nucleus the engine does not sample from: −inf for what lies outside.",
        view=View(top_p=0.95),
    ),
    Case(
        "missing_logprobs",
        ("missing_logprobs",),
        SEMANTIC,
        "Every third request does not ask the engine for log-probs.",
        silent=3,
    ),
)

_PATH: Final = (
    Case(
        "low_precision",
        ("low_precision",),
        PATH,
        "The engine computes in bfloat16, the trainer in float32.",
        acceptable=("lm_head_precision", "batch_variance"),
        engine={**PROCESSED, "dtype": "bfloat16"},
    ),
    Case(
        "lm_head_precision",
        ("lm_head_precision",),
        PATH,
        "Everything in float32, except the trainer's last matrix product in bfloat16.",
        acceptable=("low_precision",),
        view=View(head_dtype="bfloat16"),
    ),
    Case(
        "fp8_kv_cache",
        ("quantized_rollout",),
        PATH,
        "The engine keeps keys and values in 8 bits.",
        engine={**PROCESSED, "kv_cache_dtype": "fp8"},
    ),
    Case(
        "int8_weights",
        ("quantized_rollout",),
        PATH,
        "Every matrix is rounded to 8 bits, row by row, on its way to the engine.",
        acceptable=("low_precision",),
        weight_bits=8,
    ),
    Case(
        "inflight_stale_kv",
        ("inflight_stale_kv",),
        PATH,
        "Updates while requests are in flight, which go on with the keys and values of the old weights.",
        acceptable=("staleness",),
        pause="keep",
        clear_cache=False,
        scale=Scale(learning_rate=4e-4, prompts=6, tokens=64),
    ),
    Case(
        "stale_prefix_cache",
        ("stale_prefix_cache",),
        PATH,
        "Prompts share a preamble whose keys and values stay cached from the first weights on.",
        clear_cache=False,
        scale=Scale(learning_rate=4e-4, preamble=64),
    ),
    Case(
        "missed_weight_sync",
        ("missed_weight_sync",),
        PATH,
        "From version 6 on every update loads the old weights again, while the version label advances.",
        miss=Miss(first=6),
    ),
    Case(
        "partial_weight_sync",
        ("partial_weight_sync",),
        PATH,
        "The lm_head and one layer never arrive in the engine, all other tensors do.",
        acceptable=("missed_weight_sync",),
        miss=Miss(tensors=r"lm_head|layers\.1\."),
    ),
    Case(
        "replica_divergence",
        ("replica_divergence",),
        PATH,
        "Two engines; from version 5 on one of them misses the updates.",
        acceptable=("missed_weight_sync",),
        replicas=("left", "right"),
        miss=Miss(first=5, replica="right"),
    ),
    Case(
        "moe_routing",
        ("moe_routing",),
        PATH,
        "A mixture of experts: rounding to bfloat16 in the engine sends some tokens to other experts.",
        acceptable=("low_precision",),
        engine={**PROCESSED, "dtype": "bfloat16"},
        miss=Miss(
            loads=False
        ),  # nothing is to be loaded: vLLM's CPU backend cannot reload experts, so the weights do not move
        scale=Scale(size=Size(hidden=96, layers=2, experts=8, steps=700), learning_rate=0.0),
    ),
    Case(
        "batch_variance",
        ("batch_variance",),
        PATH,
        "Both sides compute in bfloat16, in batches of different shape and by different kernels.",
        acceptable=("low_precision",),
        engine={**PROCESSED, "dtype": "bfloat16"},
        view=View(dtype="bfloat16"),
    ),
)

_OBJECTIVE: Final = (
    Case(
        "staleness",
        ("staleness",),
        OBJECTIVE,
        "A correct engine whose batches wait: up to eight versions of lag, all known.",
        backlog=Backlog(depth=8),
    ),
    Case(
        "late_growth",
        ("late_growth",),
        OBJECTIVE,
        "One step off-policy, then batches pile up from step 90 on.",
        acceptable=("staleness",),
        backlog=Backlog(depth=1, grows_from=90, grows_every=4),
        scale=Scale(steps=130, prompts=4, answers=3, tokens=16),
    ),
    Case(
        "step_jump",
        ("step_jump",),
        OBJECTIVE,
        "One step off-policy; at step 70 the learning rate is set ten times as high.",
        acceptable=("staleness",),
        backlog=Backlog(depth=1),
        jump=(70, 10.0),
        scale=Scale(steps=100, prompts=4, answers=3, tokens=16, learning_rate=1e-4),
    ),
)

_PAIRS: Final = (
    Case(
        "raw_logprobs_and_missed_sync",
        ("raw_logprobs", "missed_weight_sync"),
        SEMANTIC,
        "vLLM's default logprobs_mode at T = 0.7, and from version 6 on no update arrives.",
        engine={},
        sampling=WARM,
        miss=Miss(first=6),
    ),
    Case(
        "low_precision_and_staleness",
        ("low_precision", "staleness"),
        PATH,
        "A bfloat16 engine whose batches wait for six versions.",
        acceptable=("staleness", "low_precision"),
        engine={**PROCESSED, "dtype": "bfloat16"},
        backlog=Backlog(depth=6),
    ),
)

CASES: Final[dict[str, Case]] = {case.name: case for case in (*_HEALTHY, *_SEMANTIC, *_PATH, *_OBJECTIVE, *_PAIRS)}
