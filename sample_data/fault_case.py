"""What a fault fixture is made of: how engine, weight updates, glue code and trainer behave in one short run."""

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
