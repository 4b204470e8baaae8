"""Compare the level of K3 with the range reported for the setup."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal

import numpy as np

from logprobe.monitor.judging.document import LevelDocument, LevelStatus
from logprobe.monitor.judging.frame import Frame
from logprobe.monitor.judging.judgement import GROWS, Level, Remembered
from logprobe.monitor.judging.levels import BANDS, SETUPS, Band, Recorded
from logprobe.monitor.judging.measures import Floats
from logprobe.monitor.judging.once import once
from logprobe.monitor.judging.records import windows
from logprobe.monitor.judging.setup import FULL_DTYPES, HALF_DTYPES, LOW_DTYPES, Setup
from logprobe.monitor.judging.thresholds import number
from logprobe.monitor.judging.tokens import on_grid

Precision = Literal["full", "half", "bf16"]
_NAMED: Final = 2  # rows in a text
_UNKNOWN_TEMPERATURES: Final = tuple(round(0.05 * i, 2) for i in range(2, 41))


@once
def grids(frame: Frame) -> tuple[float, float]:
    """Return the shares of 16-bit logits at engine and trainer, NaN if unknown."""
    tokens = frame.tokens
    if tokens is None or not len(tokens):
        return math.nan, math.nan
    temperatures = {1.0, *(frame.setup.temperatures or _UNKNOWN_TEMPERATURES)}
    return on_grid(tokens, tokens.r, temperatures), on_grid(tokens, tokens.t, temperatures)


def expected(frame: Frame) -> tuple[float, float, bool]:
    """Return the lowest and highest K3 reported for the setup, and whether the setup is unknown."""
    rows, nothing = _rows(frame)
    return min(row.low for row in rows), max(row.high for row in rows), nothing


def _rows(frame: Frame) -> tuple[list[Band], bool]:
    """Return the rows of the level table that may match the setup, and whether the setup is fully unknown."""
    engine, trainer = _heads(frame)
    traits = _traits(frame.setup, frame.readings.rounded or engine, trainer)
    if traits.experts and frame.replay.measured and frame.replay.exact:
        traits = replace(traits, experts=False)  # what is left with the same experts is what a dense model has
    return [row for row in BANDS if traits.fits(row)] or list(BANDS), traits.nothing


@dataclass(frozen=True, slots=True)
class Traits:
    """Parts of a setup that decide the level, None if unknown."""

    engine: Precision | None
    trainer: Precision | None
    experts: bool | None
    quantized: bool

    @property
    def nothing(self) -> bool:
        """Return whether no part narrows the expected range. Without a precision, all rows are equally likely."""
        return self.engine is None and self.trainer is None and not self.quantized

    def fits(self, row: Band) -> bool:
        """Return whether a row of the level table may match the setup."""
        return (
            row.quantized == self.quantized
            and (row.experts is None or self.experts is None or row.experts == self.experts)
            and all(
                not allowed or precision is None or precision in allowed
                for allowed, precision in ((row.engine, self.engine), (row.trainer, self.trainer))
            )
        )


def _traits(setup: Setup, engine_head: str | None = None, trainer_head: str | None = None) -> Traits:
    return Traits(
        engine=_coarsest([*map(str, setup.engine("dtype")[:1]), engine_head]),
        trainer=_coarsest([setup.trainer_dtype, trainer_head]),
        experts=True if setup.mixture_of_experts else False if setup.engine("architectures") else None,
        quantized=bool(setup.quantizations),
    )


def _heads(frame: Frame) -> tuple[str | None, str | None]:
    """Return the dtypes of both sides' logits by their grid, None if inconclusive."""
    engine, trainer = ("bfloat16" if share > number("grid_share") else None for share in grids(frame))
    return engine, trainer


def setup_of(frame: Frame) -> dict[str, str | None]:
    """Return the known parts of the setup, for a diagnosis."""
    setup, (engine_head, trainer_head) = frame.setup, _heads(frame)
    engine = next((str(value).lower() for value in setup.engine("dtype")), None)
    cache = next(map(str, setup.engine("kv_cache_dtype")), None)
    experts = _traits(setup).experts
    quantized = setup.quantizations
    return {
        "engine_dtype": engine or engine_head,
        "trainer_dtype": setup.trainer_dtype or trainer_head,
        "head": setup.head_dtype or engine_head,
        "experts": None if experts is None else "yes" if experts else "no",
        "kv_cache": quantized.get("kv_cache_dtype") or cache,
        "weights": quantized.get("quantization") or ("as the dtype" if setup.engines else None),
        "replay": None if not frame.replay.measured else "yes" if frame.replay.exact else "no",
    }


def recorded_like(setup: Mapping[str, str | None]) -> Recorded | None:
    """Return the recorded setup with these settings, or None without one. Only the replay of routes may be unknown."""
    known = all(value is not None for name, value in setup.items() if name != "replay")
    return next((row for row in SETUPS if known and row.setup == setup), None)


def band_of(setup: Setup) -> float | None:
    """Return the K3 that no possible setup of the run exceeds according to reports, or None if unknown.

    The band excuses growth, and an unknown part of the setup excuses none. Without a recorded architecture, a model may
    be dense.
    """
    traits = _traits(setup)
    return None if traits.nothing else min((row.high for row in BANDS if traits.fits(row)), default=None)


def far(frame: Frame) -> float:
    """Return the smallest K3 that exceeds the range of the setup.

    For an unknown setup, the range of dense bf16 applies. Tests that need a larger mismatch check it separately.
    """
    _, high, nothing = expected(frame)
    return number("above") * (number("dense") if nothing else high)


def level_of(frame: Frame) -> Level:
    """Judge the level of K3."""
    rows, nothing = _rows(frame)
    low, high = min(row.low for row in rows), max(row.high for row in rows)
    source = "; ".join(dict.fromkeys(row.source for row in rows))
    k3 = numerics(frame)
    if k3 is None and frame.gap.n >= number("fewest") and frame.gap.k3 <= high:
        k3 = frame.gap.k3  # lag only adds to it
    level = Level(k3, low, high, _status(k3, high, nothing=nothing), source, bands=tuple(row.name for row in rows))
    calibrating = frame.growth.verdict == "calibrating" and frame.growth.baseline is None
    memory = frame.remembered
    return _remembered(level, memory) if calibrating and memory is not None and memory.settles else level


def _status(k3: float | None, high: float, *, nothing: bool) -> LevelStatus:
    if k3 is None:
        return "not measured"
    if k3 > number("far_above") * high:
        return "far above"
    if k3 > number("above") * high:
        return "above"
    return "unknown set-up" if nothing else "as expected"


def _remembered(level: Level, memory: Remembered) -> Level:
    """Judge a level against known-good runs, for a run without a baseline.

    Entropy and tasks change the level of a setup. Within the table's range, the result is therefore at most "above".
    """
    k3, most = level.k3, max(memory.high, number("slight"))
    if k3 is None:
        return level
    beyond, status = level.status in ("above", "far above"), level.status
    if k3 <= (memory.high if beyond else number("above") * most):
        status = "as expected"
    elif k3 > number("far_above") * most:
        status = "far above" if beyond or k3 > level.high else "above"
    settled = status == "as expected" and not max(k3, number("visible_k3")) < memory.low / number("far_above")
    known = replace(level, low=memory.low, high=memory.high, source=memory.words, bands=())
    return replace(known, status=status, settled=settled)


def numerics(frame: Frame) -> float | None:
    """Return K3 of tokens of the trainer's own weights or of unknown age, before growth, or None for too few."""
    fewest = number("fewest")
    whole = frame.strata.where(frame.strata.own)
    ends = [whole.within(steps) for steps in windows(frame.measured)]
    usable = [end.k3 for end in ends if end.n >= fewest]
    if not usable:
        return whole.k3 if whole.n >= fewest else None
    return min(usable) if frame.growth.verdict in GROWS else usable[-1]


def identical(frame: Frame) -> bool:
    """Return whether both sides have the same bits in nearly all tokens of at least two steps."""
    n = frame.series.total("n")
    steps = int(np.sum(frame.series["n"] > 0)) if len(frame.series) else 0
    return steps >= number("identical_steps") and frame.series.total("n_same") >= number("identical_share") * n > 0


def rounded_copy(frame: Frame) -> str | None:
    """Return the dtype of 16 bits to which one side's log-probs are rounded to give those of the other, or None.

    Computations in 16 bits differ by more than that. Those in float32 may not, so an engine has to state 16 bits.
    """
    tokens = frame.tokens
    if tokens is None or len(tokens) < number("fewest") or frame.setup.engine_low_dtype is None:
        return None
    for ours, theirs in ((tokens.r, tokens.t), (tokens.t, tokens.r)):
        for dtype, rounded in (("bfloat16", _bfloat16(theirs)), ("float16", theirs.astype(np.float16))):
            same, moved = np.mean(ours == rounded), np.mean(ours != theirs)
            if same >= number("identical_share") and moved > number("hardly_any"):
                return dtype
    return None


def _bfloat16(values: Floats) -> Floats:
    """Round to the nearest bfloat16, ties to even."""
    bits = values.astype(np.float32).view(np.uint32)
    upper = (bits + 0x7FFF + ((bits >> 16) & 1)) & np.uint32(0xFFFF0000)
    return upper.astype(np.uint32).view(np.float32).astype(np.float64)


def bits_may_agree(frame: Frame) -> bool:
    """Return whether two computations, each recorded where it was made, can give equal bits."""
    return frame.independent is True and frame.setup.bits_may_agree


def _coarsest(dtypes: Iterable[str | None]) -> Precision | None:
    known = [_precision(dtype) for dtype in dtypes if dtype is not None]
    order: tuple[Precision, ...] = ("full", "half", "bf16")
    return max((kind for kind in known if kind is not None), key=order.index, default=None)


def _precision(dtype: str) -> Precision | None:
    name = dtype.lower()
    if name in FULL_DTYPES:
        return "full"
    return "half" if name in HALF_DTYPES else "bf16" if name in LOW_DTYPES else None


# ------------------------------------------------------------------------------------------------ words


def in_words(level: LevelDocument | None) -> str:
    """Return a sentence that compares the level with the setup. An unknown level is not called normal."""
    if level is None or level["numerics"] is None:
        return "K3 of tokens that the trainer's own weights sampled is not known, so neither is whether it is normal"
    k3, status, memory = f"{level['numerics']:.2g}", level["status"], level["remembered"]
    if memory is not None and level["source"] == memory["words"]:
        return f"K3 of {k3} is {status}: {memory['words']}"
    if status == "unknown set-up":
        return (
            f"no setup recorded: {k3} is {_among(level['numerics'])}; record the configuration, or compare with a run"
        )
    told = compared(level)
    if status == "as expected" and level["numerics"] > (level["expected"]["high"] or 0.0):
        return f"K3 of {k3} is within {number('above'):g} times what this setup has ({told})"
    if status == "as expected":
        return f"K3 is what this setup has ({told})"
    return f"K3 of {k3} is {status} what such a setup is reported to have ({told})"


def compared(level: LevelDocument | None) -> str:
    """Return the range that a level is compared with, and the rows behind it, or "" without any."""
    names = [] if level is None else level.get("bands", ())  # documents of earlier versions have none
    if level is None or not names:
        return ""
    low, high = (round_number(end or 0.0) for end in (level["expected"]["low"], level["expected"]["high"]))
    like = recorded_like(level["setup"])
    told = f"{low} to {high}; {rows_named(names)}"
    return told if like is None else f"{told}; “{like.name}” of the same settings has {_span(like)}, {like.source}"


def rows_named(names: Sequence[str]) -> str:
    """Return the names of rows of the level table, or their number if there are many."""
    if len(names) > _NAMED:
        return f"{len(names)} rows of the level table fit"
    return f"row{'s' if len(names) > 1 else ''} {' and '.join(f'“{name}”' for name in names)}"


def _span(row: Recorded) -> str:
    return f"{row.low:.2g}" if row.low == row.high else f"{row.low:.2g} to {row.high:.2g}"


def _among(k3: float) -> str:
    """Return the kinds of setup that are reported to have the level."""
    dense, most = number("dense"), max(row.high for row in BANDS)
    if k3 <= dense:
        return f"usual for dense bf16 (at most {round_number(dense)}), high for float32"
    if k3 <= most:
        return f"high for dense bf16 (at most {round_number(dense)}), usual for experts or fp8"
    return f"more than is reported of any setup (at most {round_number(most)})"


def round_number(value: float) -> str:
    """Return a round number in its shortest form.

    >>> round_number(1e-5)
    '1e-5'
    """
    return f"{value:.0e}".replace("e-0", "e-").replace("0e+00", "0")
