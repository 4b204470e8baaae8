"""Made-up runs for the judge: real softmax distributions, tokens really sampled from the engine's, faults in one place.

Engine and trainer see each context's logits with errors of their own, so that E[ρ] = 1 holds unless a fault breaks it. Answers to one
prompt share their first context.

Dimensions: ``S`` sequences, ``L`` places, ``V`` tokens of the vocabulary, ``N`` = S·L.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from diagnosis_simulation import log_softmax
from judging.second.reduced import Reduced
from sampled_requests import Requests

from logprobe.monitor.judging.frame import Frame
from logprobe.monitor.judging.growth import Tracker
from logprobe.monitor.judging.level import band_of


@dataclass
class World:
    """One run. `faults` are applied in turn; each has a `kind`, a place `at` (column → values) and a step `since`.

    Attributes:
        noise: standard deviation of each trainer logit.
        spread: of the logits of a context.
        sure: added to the logit of the likeliest token.
        by_column: column → value → factor of the noise, of healthy runs whose noise differs.
        unrest: standard deviation of log noise from step to step.
        lag_by_length: share of the answers whose lag is that of their length, the longest the oldest; of the others, it is any.
        length_noise: standard deviation that the longest answers add to each trainer logit, the shortest none.
        recorded: what there is to read, see `Reduced`.
        requests: requests of the engine and what drops them, see `Requests`.
        setup_changes_at: first step of another engine setup.
    """

    seed: int = 0
    steps: int = 220
    prompts: int = 3
    answers: int = 3
    length: int = 24
    vocabulary: int = 16
    noise: float = 0.03
    heavy: float = 0.0
    spread: float = 2.0
    sure: float = 0.0
    unrest: float = 0.05
    lags: tuple[int, ...] = (0,)
    lag_noise: float = 0.0
    lag_by_length: float | None = None
    length_noise: float = 0.0
    drift: dict[str, float] = field(default_factory=dict)
    by_column: dict[str, dict[Any, float]] = field(default_factory=dict)
    temperature: float = 1.0
    nucleus: None = None  # as the other author's runs may have one
    engine: dict[str, Any] | None = None
    trainer: dict[str, Any] | None = None
    sampling: dict[str, Any] | None = None
    recorded: dict[str, Any] = field(default_factory=dict)
    requests: dict[str, Any] | None = None
    setup_changes_at: int | None = None
    faults: tuple[dict[str, Any], ...] = ()

    def frame(self) -> Frame:
        """Draw the run and sum it up."""
        drawn = Drawn(self)
        for fault in self.faults:
            drawn.apply(**fault)
        frame = drawn.frame()
        if self.setup_changes_at is not None:
            changes, series = ((0, "before"), (self.setup_changes_at, "after")), frame.series
            tracker = Tracker(band=band_of(frame.setup), setup="before")
            growth = tracker.follow(series.step.tolist(), series.k3.tolist(), changes[1:]).verdict()
            frame = replace(frame, setups=changes, growth=growth)
        return frame if self.requests is None else replace(frame, sampled=Requests(**self.requests).sampled())


class Drawn(Reduced):
    """Arrays of a run."""

    inside: np.ndarray

    def __init__(self, world: World) -> None:
        self.run = w = world
        self.rng = rng = np.random.default_rng(w.seed)
        self.size = size = w.steps * w.prompts * w.answers
        self.prompt = np.arange(size) // w.answers
        self.step = np.repeat(np.arange(w.steps), w.prompts * w.answers)
        self.shape = (size, w.length)
        self.groups = self._groups(size)
        self.sequence_groups = {name: self.groups[name][:, 0] for name in ("cached", "in_flight", "replica")}
        self.token_groups = {name: of for name, of in self.groups.items() if name not in self.sequence_groups}
        self.lag = np.minimum(rng.choice(w.lags, size), self.step)
        length = self.inside.sum(1)
        longer = (length - length.min()) / max(np.ptp(length), 1)
        if w.lag_by_length is not None:
            own = np.array(w.lags)[np.minimum((longer * len(w.lags)).astype(int), len(w.lags) - 1)]
            self.lag = np.minimum(np.where(rng.random(size) < w.lag_by_length, own, self.lag), self.step)
        base = rng.normal(0, w.spread, (*self.shape, w.vocabulary))
        base[..., 0] += w.sure
        first = np.arange(size) // w.answers * w.answers
        base[:, 0] = base[first, 0]
        scale = np.full(self.shape, w.noise) * np.exp(w.unrest * rng.standard_normal(w.steps))[self.step][:, None]
        for column, factors in w.by_column.items():
            for value, factor in factors.items():
                scale[self.groups[column] == value] *= factor
        if w.heavy:
            scale = scale * np.exp(w.heavy * rng.standard_normal(self.shape) - w.heavy**2)
        scale = np.sqrt(
            scale**2 + (w.lag_noise**2 * self.lag + w.length_noise**2 * longer)[:, None] + self._drift()[:, None]
        )
        self.base = base
        self.trained = base + scale[..., None] * self._shared(rng.standard_normal(base.shape))
        temperature = w.temperature
        self.engine_logp = log_softmax(base / temperature)
        self.trainer_logp = log_softmax(self.trained / temperature)
        self.sampled = self.engine_logp
        self.token = (self.sampled + rng.gumbel(size=base.shape)).argmax(-1)
        self.version = self.step - self.lag
        self._score()

    def _drift(self) -> np.ndarray:
        """Variance that drifting policies add: a doubling of K3 every so many steps since the onset."""
        d = self.run.drift
        if not d:
            return np.zeros(len(self.step))
        since = np.maximum(self.step - d["onset"], 0)
        return self.run.noise**2 * (2 ** (since / d["doubling"]) - 1)

    def _groups(self, size: int) -> dict[str, np.ndarray]:
        """Group columns; independent of each other, as hidden groups are of recorded ones."""
        w, rng = self.run, np.random.default_rng([self.run.seed, 7])
        place = np.broadcast_to(np.arange(w.length), (size, w.length))
        each = lambda values: np.repeat(np.asarray(values)[:, None], w.length, 1)
        prompt = np.arange(size) // w.answers
        prompts = size // w.answers
        lengths = rng.integers(w.length * 2 // 3, w.length + 1, size)
        self.inside = place < lengths[:, None]
        tags = np.array(["math", "code", "chat", "tools", "science"])
        return {
            "from_start": place.copy(),
            "from_end": lengths[:, None] - 1 - place,
            "finish": each(np.where(rng.random(size) < 0.25, "length", "stop")),
            "turn": place // 8,
            "turn_start": place % 8,
            "rank": each(rng.integers(0, 8, size)),
            "tag": each(tags[rng.integers(0, 5, prompts)][prompt]),
            "prompt_length": each(rng.integers(0, 5, prompts)[prompt]),
            "cached": each(np.arange(size) % w.answers > 0),
            "in_flight": each(np.zeros(size, bool)),
            "replica": each(np.array(["a", "b"])[rng.integers(0, 2, prompts)][prompt]),
        }

    def _shared(self, values: np.ndarray) -> np.ndarray:
        """Answers to one prompt share their first context, and either side computes it once."""
        size, answers = len(values), self.run.answers
        values[:, 0] = values[np.arange(size) // answers * answers, 0]
        return values

    def _score(self) -> None:
        at = np.ogrid[: self.shape[0], : self.shape[1]]
        self.r = self.engine_logp[at[0], at[1], self.token]
        self.t = self.trainer_logp[at[0], at[1], self.token]

    def _at(self, at: dict[str, list[Any]] | None, since: int) -> np.ndarray:
        keep = np.broadcast_to((self.step >= since)[:, None], self.shape).copy()
        for column, values in (at or {}).items():
            keep &= np.isin(self.groups[column], values)
        return keep

    # ------------------------------------------------------------------------------------------------ faults

    def apply(self, kind: str, at: dict[str, list[Any]] | None = None, since: int = 0, **more: Any) -> None:
        getattr(self, f"_{kind}")(self._at(at, since), **more)

    def _resample(self, keep: np.ndarray) -> None:
        token = (self.sampled[keep] + self.rng.gumbel(size=self.sampled[keep].shape)).argmax(-1)
        self.token[keep] = token
        rows = np.arange(len(token))
        self.r[keep], self.t[keep] = self.engine_logp[keep][rows, token], self.trainer_logp[keep][rows, token]

    def _other_engine(self, keep: np.ndarray) -> None:
        """The engine scores (and samples) something else."""
        self.engine_logp[keep] = log_softmax(self._shared(self.rng.normal(0, 2, self.base.shape))[keep])
        self._resample(keep)

    def _noise(self, keep: np.ndarray, size: float, nth: int | None = None) -> None:
        """The trainer's logits are off; with `nth` those of every nth answer alone, also in a context that others share."""
        noise = self.rng.normal(0, size, self.base.shape)
        some = keep if nth is None else keep & (np.arange(self.size) % nth == 0)[:, None]
        self.trainer_logp[some] = log_softmax(
            self.trained[some] + (self._shared(noise) if nth is None else noise)[some]
        )
        self._resample(some)

    def _zeros(self, keep: np.ndarray, side: str = "rollout") -> None:
        (self.r if side == "rollout" else self.t)[keep] = 0.0

    def _divided(self, keep: np.ndarray, by: float, side: str = "rollout") -> None:
        """Log-probs, not logits, are divided; `side` reports them so."""
        if side == "rollout":
            self.r[keep] = np.take_along_axis(log_softmax(self.base), self.token[..., None], -1)[..., 0][keep] / by
        else:
            self.t[keep] = np.take_along_axis(log_softmax(self.trained), self.token[..., None], -1)[..., 0][keep] / by

    def _padded(self, keep: np.ndarray, rows: int, side: str = "rollout") -> None:
        z = self.base if side == "rollout" else self.trained
        wide = log_softmax(np.concatenate([z, np.zeros((*z.shape[:-1], rows))], -1))[..., : z.shape[-1]]
        ours = np.take_along_axis(wide, self.token[..., None], -1)[..., 0]
        (self.r if side == "rollout" else self.t)[keep] = ours[keep]

    def _temperature(self, keep: np.ndarray, of: float) -> None:
        """The engine samples at this temperature, the trainer's stays 1."""
        self.engine_logp[keep] = log_softmax(self.base[keep] / of)
        self._resample(keep)

    def _raw(self, keep: np.ndarray) -> None:
        """The engine reports log-probs from before the temperature that both sides have."""
        self.r[keep] = np.take_along_axis(log_softmax(self.base), self.token[..., None], -1)[..., 0][keep]

    def _capped(self, keep: np.ndarray, cap: float) -> None:
        """The engine caps its logits, the trainer does not."""
        self.engine_logp[keep] = log_softmax(cap * np.tanh(self.base[keep] / cap))
        self._resample(keep)

    def _padded_rows(self, keep: np.ndarray, value: float = 0.0, token: int = 0) -> None:
        """Rows are under the mask up to their padded length."""
        pad = ~self.inside & keep
        self.r[pad], self.token[pad] = value, token
        if value == 0:
            self.t[pad] = 0.0
        self.inside = self.inside | keep

    def _left_padded(self, keep: np.ndarray, places: int, token: int = 0) -> None:
        """The first places of half of the rows are padding, under the mask."""
        pad = keep & (np.arange(self.shape[1]) < places) & (np.arange(self.size) % 2 == 0)[:, None]
        self.r[pad], self.t[pad], self.token[pad] = 0.0, 0.0, token

    def _sure_end(self, keep: np.ndarray, token: int = 0) -> None:
        """Answers end in a token that both sides are ever surer of, until its log-prob rounds to 0."""
        place = np.arange(self.shape[1])
        odds = np.broadcast_to(np.float32(-np.exp(-2.0 * place)), self.shape)
        self.token[keep], self.r[keep] = token, odds[keep]
        self.t[keep] = (odds * np.exp(self.rng.normal(0, 0.1, self.shape)))[keep]

    def _clamped(self, keep: np.ndarray, least: float) -> None:
        """The trainer's log-probs are no lower than this."""
        self.t[keep] = np.maximum(self.t[keep], least)

    def _nucleus(self, keep: np.ndarray, min_p: float, *, replayed: bool = False) -> None:
        """The engine truncates; a trainer by whom it is `replayed` takes its softmax over what the engine kept."""
        p = self.engine_logp
        out = p < p.max(-1, keepdims=True) + np.log(min_p)
        self.engine_logp[keep] = log_softmax(np.where(out, -1e9, p)[keep])
        if replayed:
            self.trainer_logp[keep] = log_softmax(np.where(out, -1e9, self.trainer_logp)[keep])
        self.sampled = self.engine_logp
        self._resample(keep)

    def _identical(self, keep: np.ndarray, dtype: str | None = None) -> None:
        """One array was recorded twice, with `dtype` once rounded to it."""
        self.r[keep] = self.t[keep] if dtype is None else self.t[keep].astype(dtype)

    def _copied(self, keep: np.ndarray, of: int = 0) -> None:
        """Answers repeat one to the same prompt, token for token: the one `of` places before, or the first."""
        rows = np.flatnonzero(keep.any(1))
        answers = self.run.answers
        first = rows // answers * answers + (rows % answers % of if of else 0)
        for side in (self.token, self.r, self.t, self.inside):
            side[rows] = side[first]

    def _on_grid(self, keep: np.ndarray, spacing: float) -> None:
        """Both sides report multiples of a number, and agree in many tokens."""
        self.r[keep], self.t[keep] = (np.round(side[keep] / spacing) * spacing for side in (self.r, self.t))

    def _nameless(self, keep: np.ndarray) -> None:
        """Token ids are a stand-in."""
        self.token[keep] = 0

    def _shifted(self, keep: np.ndarray, by: int = 1) -> None:
        self.t[keep] = np.roll(self.t, by, 1)[keep]

    def _other_trainer(self, keep: np.ndarray) -> None:
        self.trainer_logp[keep] = log_softmax(self._shared(self.rng.normal(0, 2, self.base.shape))[keep])
        self._resample(keep)

    def _missed(self, keep: np.ndarray, size: float, power: float = 1.0) -> None:
        """Updates stop arriving: the trainer moves on, a random step of `size` at each."""
        count = np.cumsum(np.bincount(self.step, keep.any(1)) > 0)[self.step]
        std = size * np.where(keep.any(1), count, 0.0) ** (power / 2)
        self.trainer_logp = log_softmax(
            self.trained + std[:, None, None] * self._shared(self.rng.standard_normal(self.base.shape))
        )
        self._score()

    def _rounded(self, keep: np.ndarray, size: float, after: int) -> None:
        """The engine has the trainer's weights rounded: what is lost grows by each update until, `after` some, it is all there can be."""
        count = np.cumsum(np.bincount(self.step, keep.any(1)) > 0)[self.step]
        lost = size * np.minimum(np.where(keep.any(1), count, 0.0) / after, 1.0)
        self.trainer_logp = log_softmax(
            self.trained + lost[:, None, None] * self._shared(self.rng.standard_normal(self.base.shape))
        )
        self._score()

    def _every(self, keep: np.ndarray, size: float, nth: int) -> None:
        """One update in every `nth` is not loaded."""
        odd = keep & (self.step % nth == nth - 1)[:, None]
        self._noise(odd, size)

    def _feed(self, keep: np.ndarray, every: int) -> None:
        """Rollouts are stamped with a counter of batches, which the trainer's version follows once in `every`."""
        self.lag = self.step // every - self.step
        self.version = self.step.copy()

    def _stamped(self, keep: np.ndarray, offset: int, times: int) -> None:
        """Rollouts are stamped with numbers that were never published."""
        self.version = self.version * times - offset
        self.lag = self.step - self.version

    def _stalled(self, keep: np.ndarray, since_version: int, size: float, back_to: int | None = None) -> None:
        """The engine gets no update any more, or went back, and says so: its labels stand still."""
        self._missed(keep, size)
        still = since_version if back_to is None else np.where(self.step > since_version, back_to, since_version)
        self.version = np.where(keep.any(1), np.minimum(self.step, still), self.step)
        self.lag = self.step - self.version

    def _repeated_routes(self, keep: np.ndarray, block: int, size: float) -> None:
        """In each step a block of tokens is computed with another token's experts."""
        rows = self.rng.integers(0, self.run.prompts * self.run.answers, self.run.steps)
        rows += np.arange(self.run.steps) * self.run.prompts * self.run.answers
        starts = self.rng.integers(0, self.run.length - block, self.run.steps)
        hit = np.zeros(self.shape, bool)
        for row, start in zip(rows, starts, strict=True):
            hit[row, start : start + block] = True
        self._noise(hit & keep, size)

    def _sentinel(self, keep: np.ndarray, value: float) -> None:
        self.r[keep] = value

    def _placeholder_end(self, keep: np.ndarray, token: int = 7) -> None:
        self.token[keep] = token
        self.r[keep] = 0.0
        self.t[keep] = np.minimum(self.trainer_logp[keep][:, token], -0.05)

    def _logits(self, keep: np.ndarray) -> None:
        self.r[keep] = np.take_along_axis(self.base, self.token[..., None], -1)[..., 0][keep] + 3

    def _labels(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        return np.repeat(self.version[:, None], self.shape[1], 1).astype(float), self.lag, self.version + self.lag
