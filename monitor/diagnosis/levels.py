"""What K3 a setup should give: a table with a source for each row, and how the measured level is judged by it.

The level is one question, growth is another: what is judged here is the gap between two computations of the same
weights before it grew. How it changed since is judged by the run's own past
(`logprobe.monitor.diagnosis.growth.onset`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

from logprobe.monitor.diagnosis.evidence.evidence import ROUNDING, SLIGHT, Evidence
from logprobe.monitor.diagnosis.evidence.setup import FULL_DTYPES, HALF_DTYPES, LOW_DTYPES, Setup
from logprobe.monitor.diagnosis.result import GROWS, REMEMBERED_RUNS, Level, LevelStatus, Remembered

ABOVE: Final = 3.0  # times the upper end of what is expected: reports of one setup differ by less
FAR_ABOVE: Final = 10.0  # times: no setup of this kind is reported there
DENSE: Final = 2e-3  # K3: upper end of dense bf16, the most usual setup
_ON_GRID: Final = 0.9  # of the differences between tokens of one context; by chance 1 in 200 is
_FEWEST: Final = 200  # tokens

Precision = Literal["full", "half", "bf16"]


@dataclass(frozen=True, slots=True)
class Prior:
    """One row: the K3 that such a setup is reported to have.

    Attributes:
        low: lower end of what is reported.
        high: upper end.
        source: who reports it.
        engine: precision of the engine; None: any.
        trainer: precision of the trainer; None: any.
        experts: whether the model is a mixture of experts; None: either.
        quantized: whether weights or KV cache have 8 bits or fewer.
    """

    low: float
    high: float
    source: str
    engine: tuple[Precision, ...] | None = None
    trainer: tuple[Precision, ...] | None = None
    experts: bool | None = None
    quantized: bool = False


_BF16: Final[tuple[Precision, ...]] = ("bf16",)
PRIORS: Final = (
    Prior(
        0.0,
        1e-5,
        "float32 on both sides: 2.4e-6 across engines (Fast-LLM PR 525), 1e-13 to 1e-11 measured on a CPU",
        engine=("full",),
        trainer=("full",),
        experts=False,
    ),
    Prior(
        0.0,
        1e-3,
        "derived: float32 rounding, too, sends tokens to other experts; at most the lower end reported for bf16 "
        "(slime)",
        engine=("full",),
        trainer=("full",),
        experts=True,
    ),
    Prior(
        0.0,
        2e-4,
        "derived: three more bits than bf16 make 1/64 of its K3 (compare Precision-RL), with room for a head in "
        "another dtype",
        engine=("half",),
        trainer=("half", "full"),
        experts=False,
    ),
    Prior(
        0.0,
        1e-2,
        "derived: a tenth of what bf16 experts are reported to have (slime), as the rerouting of tokens shrinks less "
        "than rounding",
        engine=("half",),
        trainer=("half", "full"),
        experts=True,
    ),
    *(
        Prior(
            1e-5,
            DENSE,
            "bf16, dense: 1.2e-4 to 1.6e-3 (miles 1678, verl PR 7749), 4.7e-4 with an fp32 head (Fast-LLM PR 525), "
            "2e-3 measured on a CPU",
            engine=engine,
            trainer=trainer,
            experts=False,
        )
        for engine, trainer in ((_BF16, None), (None, _BF16))
    ),
    *(
        Prior(
            1e-4,
            1e-1,
            "bf16, mixture of experts: 1e-3 to 1e-1 (slime), 5e-4 with routing replay (prime-rl 2808), 5e-2 "
            "(tinker-feedback 22)",
            engine=engine,
            trainer=trainer,
            experts=True,
        )
        for engine, trainer in ((_BF16, None), (None, _BF16))
    ),
    Prior(
        1e-5,
        9e-2,
        "8-bit rollouts: matched 3e-3, unmatched 6e-2 (NeMo-RL); fp8 KV cache 4e-3 to 9e-2 measured on a CPU",
        experts=False,
        quantized=True,
    ),
    Prior(
        1e-4,
        1e-1,
        "8-bit rollouts of experts: mean |d| 0.041 to 0.067 (miles 2722), experts to 1e-1 (slime)",
        experts=True,
        quantized=True,
    ),
)
BEYOND: Final = ABOVE * max(prior.high for prior in PRIORS)  # K3 that no row comes near


@dataclass(frozen=True, slots=True)
class Traits:
    """What is known of a setup; null where unknown and the numbers do not tell."""

    engine: Precision | None
    trainer: Precision | None
    experts: bool | None
    quantized: bool
    words: Mapping[str, str | None]

    @property
    def nothing(self) -> bool:
        """Whether nothing narrows what to expect: without a precision of either side no row is more likely than
        another."""
        return self.engine is None and self.trainer is None and not self.quantized

    def fits(self, prior: Prior) -> bool:
        """Whether the row may be this setup's."""
        return (
            prior.quantized == self.quantized
            and (prior.experts is None or self.experts is None or prior.experts == self.experts)
            and all(
                allowed is None or precision is None or precision in allowed
                for allowed, precision in ((prior.engine, self.engine), (prior.trainer, self.trainer))
            )
        )


def traits_of(evidence: Evidence) -> Traits:
    """Dtypes, head, kind of model and quantisation, by configuration, else by the grid of the logits."""
    engine_head, trainer_head = ("bfloat16" if share > _ON_GRID else None for share in evidence.grids)
    return _traits(evidence.setup, engine_head, trainer_head)


def band_of(setup: Setup) -> float | None:
    """K3 up to which all that such a setup may be is as others report it, by configuration alone; None: that tells
    nothing, or no row fits.

    It excuses growth, and what is not known excuses none: without a recorded architecture a model may be dense.
    """
    traits = _traits(setup)
    return None if traits.nothing else min((prior.high for prior in PRIORS if traits.fits(prior)), default=None)


def _traits(setup: Setup, engine_head: str | None = None, trainer_head: str | None = None) -> Traits:
    engine = next((str(value).lower() for value in setup.engine("dtype")), None)
    quantized, architectures = setup.quantizations, bool(setup.engine("architectures"))
    experts = True if setup.mixture_of_experts else False if architectures else None
    return Traits(
        engine=_least(engine, engine_head),
        trainer=_least(setup.trainer_dtype, trainer_head),
        experts=experts,
        quantized=bool(quantized),
        words={
            "engine_dtype": engine or engine_head,
            "trainer_dtype": setup.trainer_dtype or trainer_head,
            "head": setup.head_dtype or engine_head,
            "experts": None if experts is None else "yes" if experts else "no",
            "kv_cache": quantized.get("kv_cache_dtype") or _plain(setup.engine("kv_cache_dtype")),
            "weights": quantized.get("quantization") or ("as the dtype" if setup.engines else None),
        },
    )


def _plain(values: tuple[object, ...]) -> str | None:
    return str(values[0]) if values else None


def _least(*dtypes: str | None) -> Precision | None:
    """The coarsest of what is known."""
    precisions: list[Precision] = [
        kind for dtype in dtypes if dtype is not None and (kind := _precision(dtype)) is not None
    ]
    return max(precisions, key=("full", "half", "bf16").index, default=None)


def _precision(dtype: str) -> Precision | None:
    name = dtype.lower()
    if name in FULL_DTYPES:
        return "full"
    return "half" if name in HALF_DTYPES else "bf16" if name in LOW_DTYPES else None


def expected(traits: Traits) -> tuple[float, float, str]:
    """Lowest and highest K3 of the rows that may be this setup's, and their sources."""
    rows = [prior for prior in PRIORS if traits.fits(prior)] or list(PRIORS)
    sources = dict.fromkeys(row.source for row in rows)
    return min(row.low for row in rows), max(row.high for row in rows), "; ".join(sources)


def level_of(evidence: Evidence) -> Level | None:
    """Whether the gap has the size that the setup should give; None: there is no gap to judge."""
    if not evidence.gap.n:
        return None
    traits = traits_of(evidence)
    low, high, source = expected(traits)
    numerics = numerics_of(evidence)
    if numerics is None and evidence.gap.n >= _FEWEST and evidence.gap.k3 <= high:
        numerics = evidence.gap.k3  # lag only adds to it
    status = _status(numerics, high, nothing=traits.nothing)
    growth = evidence.growth  # what others had counts until the run has a baseline of its own
    memory = evidence.remembered if growth.verdict == "calibrating" and growth.baseline is None else None
    settled = False
    if memory is not None and numerics is not None:
        if (status := _by_memory(memory, numerics, high, status)) in {"above", "far above"} or memory.settles:
            low, high, source = memory.low, memory.high, memory.words
        settled = memory.settles and status == "as expected" and not _below(memory, numerics)
    shown = status not in {"unknown set-up", "not measured"}
    return Level(
        k3=evidence.now.k3,
        numerics=numerics,
        low=low if shown else None,
        high=high if shown else None,
        setup=traits.words,
        source=source if shown else "",
        status=status,
        first=evidence.first.k3 if evidence.first.n else None,
        own=_own(evidence),
        remembered=evidence.remembered,
        settled=settled,
    )


def _status(numerics: float | None, high: float, *, nothing: bool) -> LevelStatus:
    if numerics is None:
        return "not measured"
    if numerics > FAR_ABOVE * high:
        return "far above"
    if numerics > ABOVE * high:
        return "above"
    return "unknown set-up" if nothing else "as expected"


def _by_memory(memory: Remembered, numerics: float, high: float, by_table: LevelStatus) -> LevelStatus:
    """The status beside known-good runs; entropy and tasks move the level of a setup, so within the table's band it is
    at most "above"."""
    most, beyond = max(memory.high, SLIGHT), by_table in {"above", "far above"}
    if memory.settles and numerics <= (memory.high if beyond else ABOVE * most):
        return "as expected"
    if memory.comparable and memory.runs >= REMEMBERED_RUNS and numerics > FAR_ABOVE * most:
        return "far above" if beyond or (memory.settles and numerics > high) else "above"
    return by_table


def _below(memory: Remembered, numerics: float) -> bool:
    """Whether it is far less than any of them had, as where one side was given the other's log-probs."""
    return max(numerics, ROUNDING) * FAR_ABOVE < memory.low


def _own(evidence: Evidence) -> tuple[float, float] | None:
    windows = [window.where(~(window.lag > 0)) for window in (evidence.first, evidence.now)]
    values = [window.k3 for window in windows if window.n >= _FEWEST and math.isfinite(window.k3)]
    if not values and (whole := numerics_of(evidence)) is not None:
        values = [whole]
    return (min(values), max(values)) if values else None


def in_words(level: Level | None) -> str:
    """What can be said of the level, and of nothing else; what is not known is not called normal."""
    if level is None or level.numerics is None:
        return "K3 of tokens that the trainer's own weights sampled is not known, so neither is whether it is normal"
    k3 = f"{level.numerics:.2g}"
    if level.remembered is not None and level.source == level.remembered.words:
        return f"K3 of {k3} is {level.status}: {level.source}"
    if level.status == "unknown set-up":
        return f"no setup recorded: {k3} is {_among(level.numerics)}; record the configuration, or compare with a run"
    low, high = (round_number(end) for end in (level.low or 0.0, level.high or 0.0))
    if level.status == "as expected":
        return f"K3 is what this setup has ({low} to {high})"
    return f"K3 of {k3} is {level.status} what such a setup is reported to have ({low} to {high})"


def _among(k3: float) -> str:
    """Which kinds of setup are reported to have it."""
    if k3 <= DENSE:
        return f"usual for dense bf16 (at most {round_number(DENSE)}), high for float32"
    if k3 * ABOVE <= BEYOND:
        return f"high for dense bf16 (at most {round_number(DENSE)}), usual for experts or fp8"
    return f"more than is reported of any setup (at most {round_number(BEYOND / ABOVE)})"


def round_number(value: float) -> str:
    """As people write it: 1e-5, not 1e-05."""
    return f"{value:.0e}".replace("e-0", "e-").replace("0e+00", "0")


def numerics_of(evidence: Evidence) -> float | None:
    """K3 of tokens that the trainer's own weights sampled, or of unknown age, before it grew; None: there are too
    few."""
    ours = [window.where(~(window.lag > 0)) for window in (evidence.first, evidence.now)]
    if max(window.n for window in ours) < _FEWEST:  # a short run, or few tokens a step
        whole = evidence.all_steps.where(~(evidence.all_steps.lag > 0))
        return whole.k3 if whole.n >= _FEWEST else None
    usable = ours if all(window.n >= _FEWEST for window in ours) else ours[:1] if ours[0].n >= _FEWEST else ours[1:]
    if usable[-1].n < _FEWEST:
        return None
    values = [window.k3 for window in usable if math.isfinite(window.k3)]
    if not values:
        return None
    return min(values) if evidence.growth.verdict in GROWS else values[-1]
