"""Worlds of the second author: ragged runs, token by token, that share no code with `judging.worlds`.

A context is a prompt and the tokens so far: answers to one prompt share logits, numerics and all until they part. The trainer's logits are the
truth of its weights, the engine's those of the weights it has (which may be older than it says), each with numerics of its own; tokens are
sampled from the engine's distribution. Faults are applied to logits (before a token is sampled) or to what a side reports (after).

Dimensions: ``S`` sequences, ``L`` places, ``V`` vocabulary, ``N`` tokens.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from judging.second.reduced import Reduced

from logprobe.monitor.judging.frame import Frame

TAGS = ("proofs", "sql", "dialogue", "shell")
REPORTED = {"zeros", "scaled", "constant", "floor", "value", "shifted", "same", "end", "probability", "rows_swapped"}


@dataclass
class Run:
    """One run.

    Attributes:
        prompts: per step; each has `answers` answers of some `length` tokens (mean).
        spread: of the logits; that of a context varies by `variety` (log), that of a step by `unrest`.
        sharper: factor of the spread at the last step; `lessons`: [step, factor], a curriculum.
        numerics: standard deviation of each side's error per logit; `tail`: of its log from token to token; `by_chance`: share that differs
            from batch to batch; `relative`: to the size of logits; `grid`: the engine's logits have so many bits.
        experts: [share of tokens that are rerouted, size].
        by: column → value → factor of the numerics.
        lags: kind and numbers, see `_lags`; `move`: what a version moves a logit by, `power`: K3 ~ lag ** power.
        growth: onset and doubling of K3 that policies drift apart by, `at` least in one lag.
        recorded: what there is to read, see `_setup`, `_weights`, `_readings`, `frame`.
        faults: kind, side, at (column → values), since, until and numbers of the kind.
    """

    seed: int = 0
    steps: int = 220
    prompts: int = 4
    answers: int = 2
    length: int = 14
    vocabulary: int = 10
    spread: float = 2.0
    variety: float = 0.4
    unrest: float = 0.04
    sharper: float = 1.0
    lessons: tuple[float, float] | None = None
    engine_numerics: float = 0.015
    trainer_numerics: float = 0.02
    tail: float = 0.3
    by_chance: float = 0.3
    relative: bool = False
    grid: int | None = None
    experts: tuple[float, float] | None = None
    by: dict[str, dict[Any, float]] = field(default_factory=dict)
    ranks: int = 8
    replicas: int = 2
    lags: dict[str, Any] = field(default_factory=dict)
    move: float = 0.0
    power: float = 1.0
    growth: dict[str, float] | None = None
    temperature: float = 1.0
    nucleus: float | None = None
    engine: dict[str, Any] | None = None
    trainer: dict[str, Any] | None = None
    sampling: dict[str, Any] | None = None
    recorded: dict[str, Any] = field(default_factory=dict)
    faults: tuple[dict[str, Any], ...] = ()

    def frame(self) -> Frame:
        return Drawn(self).frame()


def softlog(z: np.ndarray) -> np.ndarray:
    z = z - z.max(-1, keepdims=True)
    return z - np.log(np.exp(z).sum(-1, keepdims=True))


def cut(z: np.ndarray, mass: float) -> np.ndarray:
    """Logits of the smallest set of tokens with this mass; the others never."""
    p = np.exp(softlog(z))
    order = np.argsort(-p, -1)
    before = np.cumsum(np.take_along_axis(p, order, -1), -1) - np.take_along_axis(p, order, -1)
    keep = np.zeros(z.shape, bool)
    np.put_along_axis(keep, order, before < mass, -1)
    return np.where(keep, z, -np.float32(1e4))


class Drawn(Reduced):
    """Arrays of a run."""

    def __init__(self, run: Run) -> None:
        self.run, self.rng = run, np.random.default_rng([run.seed, 2])
        self.size = run.steps * run.prompts * run.answers
        self.step = np.repeat(np.arange(run.steps), run.prompts * run.answers)
        self.prompt = np.arange(self.size) // run.answers
        self._draw_groups()
        self._draw_versions()
        self.where = [self._mask(f) for f in run.faults]
        self._draw_tokens()
        for fault, keep in zip(run.faults, self.where, strict=True):
            if fault["kind"] in REPORTED:
                getattr(self, f"_{fault['kind']}")(keep, fault)

    # ------------------------------------------------------------------------------------------------ sequences

    def _draw_groups(self) -> None:
        run, rng, size = self.run, self.rng, self.size
        lengths = np.clip(rng.gamma(3.0, run.length / 3.0, size).round().astype(int), 4, 2 * run.length)
        self.limit = 2 * run.length
        self.lengths = lengths
        self.L = int(lengths.max())
        place = np.arange(self.L)[None, :]
        self.inside = place < lengths[:, None]
        of_prompt = lambda values: np.asarray(values, object)[self.prompt]
        prompts = size // run.answers
        cut_off = (lengths >= self.limit) | (rng.random(size) < 0.15)
        turns = rng.integers(5, 9, (size, 8)).cumsum(1)
        turn = (place[:, :, None] >= turns[:, None, :]).sum(-1)
        starts = np.concatenate([np.zeros((size, 1), int), turns], 1)
        self.sequence_groups = {
            "finish": np.where(cut_off, "length", "stop").astype(object),
            "rank": (rng.permutation(size) % run.ranks).astype(object),
            "tag": of_prompt(rng.choice(len(TAGS), prompts, p=[0.4, 0.3, 0.2, 0.1])),
            "prompt_length": of_prompt(
                [int(v) for v in rng.choice([16, 32, 64, 128, 256], prompts, p=[0.1, 0.25, 0.3, 0.25, 0.1])]
            ),
            "cached": np.array(
                [bool(v) for v in (np.arange(size) % run.answers > 0) | (rng.random(prompts)[self.prompt] < 0.3)],
                object,
            ),
            "replica": of_prompt([f"e{v}" for v in rng.integers(0, run.replicas, prompts)]),
        }
        self.sequence_groups["tag"] = np.array([TAGS[v] for v in self.sequence_groups["tag"]], object)
        self.token_groups = {
            "from_start": np.broadcast_to(place, (size, self.L)),
            "from_end": lengths[:, None] - 1 - place,
            "turn": turn,
            "turn_start": place - np.take_along_axis(starts, turn, 1),
        }

    def _draw_versions(self) -> None:
        """`lags`: kind "fixed" (of), "spread" (to), "rare" (most), "growing" (since, each): one version older every so many steps."""
        run, rng = self.run, self.rng
        kind, of = run.lags.get("kind", "fixed"), run.lags
        prompts = self.size // run.answers
        if kind == "fixed":
            lag = np.full(prompts, of.get("of", 0))
        elif kind == "spread":
            lag = rng.integers(of.get("least", 0), of["to"] + 1, prompts)
        elif kind == "rare":
            lag = np.minimum(rng.geometric(0.6, prompts) - 1, of["most"])
        else:
            behind = np.maximum(np.arange(run.steps) - of["since"], 0) // of["each"]
            lag = np.repeat(of.get("of", 0) + behind, run.prompts)
            if of.get("mixed", True):
                lag = np.where(rng.random(prompts) < 0.4, of.get("of", 0), lag)
        lag = np.minimum(lag[self.prompt], self.step)
        switched = (rng.random(self.size) < of.get("in_flight", 0.0)) & (lag > 0)
        at = (self.lengths * rng.uniform(0.2, 0.8, self.size)).astype(int)
        after = switched[:, None] & (np.arange(self.L)[None, :] >= at[:, None])
        self.lag = lag[:, None] - after
        self.after = after
        self.version = self.step[:, None] - self.lag
        self.sequence_groups["in_flight"] = np.array([bool(v) for v in switched], object)

    def _values(self, column: str) -> np.ndarray:
        if column in self.token_groups:
            return self.token_groups[column]
        return np.broadcast_to(self.sequence_groups[column][:, None], (self.size, self.L))

    def _mask(self, fault: dict[str, Any]) -> np.ndarray:
        on = (self.step >= fault.get("since", 0)) & (self.step < fault.get("until", self.run.steps))
        if "nth" in fault:
            on &= self.step % fault["nth"] == fault["nth"] - 1
        keep = np.broadcast_to(on[:, None], (self.size, self.L)).copy()
        for column, values in fault.get("at", {}).items():
            keep &= np.isin(self._values(column), values)
        if "share" in fault:
            keep &= self.rng.random(keep.shape) < fault["share"]
        if "after_switch" in fault:
            keep &= self.after
        if "before_switch" in fault:
            keep &= self.after.any(1)[:, None] & ~self.after
        return keep & self.inside

    # ------------------------------------------------------------------------------------------------ tokens

    def _scale(self) -> np.ndarray:
        """Factor of the numerics [S, L]."""
        run, rng = self.run, self.rng
        factor = np.exp(run.unrest * rng.standard_normal(run.steps))[self.step][:, None] * np.ones((1, self.L))
        for column, factors in run.by.items():
            values = self._values(column)
            for value, by in factors.items():
                factor = np.where(values == value, factor * by, factor)
        return factor

    def _spread(self) -> np.ndarray:
        run = self.run
        spread = run.spread * run.sharper ** (self.step / max(run.steps - 1, 1))
        if run.lessons:
            spread = np.where(self.step >= run.lessons[0], spread * run.lessons[1], spread)
        return spread

    def _moved(self) -> np.ndarray:
        """How far the trainer's logits are from those of the engine's weights, as labelled [S, L]."""
        run = self.run
        moved = run.move * np.maximum(self.lag, 0).astype(float) ** (run.power / 2)
        if run.growth:
            g, since = run.growth, np.maximum(self.step - run.growth["onset"], 0)
            more = run.growth.get("size", run.trainer_numerics) ** 2 * (2 ** (since / g["doubling"]) - 1)
            more = np.minimum(more, run.growth.get("most", 1.0) ** 2)
            if g.get("lagged"):
                more = more[:, None] * np.maximum(self.lag, 0)
            else:
                more = np.broadcast_to(more[:, None], self.lag.shape)
            if g.get("at"):
                more = more * self._mask({"at": g["at"]})
            moved = np.sqrt(moved**2 + more)
        return moved

    def _draw_tokens(self) -> None:
        run, rng, V = self.run, self.rng, self.run.vocabulary
        shape = (self.size, self.L)
        self.token, self.r, self.t = np.zeros(shape, int), np.zeros(shape), np.zeros(shape)
        scale, spread, moved = self._scale(), self._spread(), self._moved()
        key = self.prompt.astype(np.int64)
        logit_faults = [(f, k) for f, k in zip(run.faults, self.where, strict=True) if f["kind"] not in REPORTED]
        self.missed = {id(f): self._count(k) for f, k in logit_faults if f["kind"] == "behind"}
        for place in range(self.L):
            active = np.flatnonzero(self.inside[:, place])
            if not len(active):
                break
            _, first, same = np.unique(key[active], return_index=True, return_inverse=True)
            share = lambda x, first=first, same=same: x[first[same]]
            self.share, self.active, self.place = share, active, place
            shape = (len(active), V)
            self.random = lambda shape=shape: rng.standard_normal(shape, np.float32)
            width = share(np.exp(run.variety * rng.standard_normal(len(active)))) * spread[active]
            truth = share(self.random()) * width[:, None].astype(np.float32)
            error = scale[active, place]
            if run.tail:
                error = error * share(np.exp(run.tail * rng.standard_normal(len(active)) - run.tail**2))
            if run.relative:
                error = error * width / run.spread
            engine = truth + self._numerics(run.engine_numerics * error)
            trainer = truth + self._numerics(run.trainer_numerics * error)
            if moved[active, place].any():
                trainer = trainer + moved[active, place, None].astype(np.float32) * share(self.random())
            if run.experts:
                hit = share(rng.random(len(active))) < run.experts[0]
                engine = engine + np.where(hit[:, None], run.experts[1], 0).astype(np.float32) * share(self.random())
            if run.grid:
                engine = _rounded(engine, run.grid)
            engine, trainer = engine / np.float32(run.temperature), trainer / np.float32(run.temperature)
            if run.nucleus:
                engine = cut(engine, run.nucleus)
                trainer = np.where(engine > -5e3, trainer, -np.float32(1e4))
            self.sampled, self.reported, self.trained = engine, engine.copy(), trainer
            self.more = {"engine": np.zeros(len(active)), "trainer": np.zeros(len(active))}
            for fault, keep in logit_faults:
                if keep[active, place].any():
                    getattr(self, f"_{fault['kind']}")(keep[active, place], fault)
            p = softlog(self.sampled)
            chosen = (p + rng.gumbel(size=p.shape)).argmax(-1)
            rows = np.arange(len(active))
            self.token[active, place] = chosen
            self.r[active, place] = softlog(self.reported)[rows, chosen] - self.more["engine"]
            self.t[active, place] = softlog(self.trained)[rows, chosen] - self.more["trainer"]
            key[active] = same * V + chosen
        self.r, self.t = self.r.astype(np.float32), self.t.astype(np.float32)

    def _numerics(self, size: np.ndarray) -> np.ndarray:
        """Errors of one side; some of them change with the batch."""
        own = self.run.by_chance
        error = np.sqrt(1 - own) * self.share(self.random())
        if own:
            error = error + np.sqrt(own) * self.random()
        return (size[:, None] * error).astype(np.float32)

    # ------------------------------------------------------------------------------------------------ faults of logits

    def _put(self, side: str, keep: np.ndarray, values: np.ndarray) -> None:
        """Engine: it samples from what it reports; report: it does not; trainer."""
        values = values.astype(np.float32)
        if side == "engine":
            self.sampled = np.where(keep[:, None], values, self.sampled)
        if side in ("engine", "report"):
            self.reported = np.where(keep[:, None], values, self.reported)
        else:
            self.trained = np.where(keep[:, None], values, self.trained)

    def _of(self, side: str) -> np.ndarray:
        return self.trained if side == "trainer" else self.reported

    def _other(self, keep: np.ndarray, of: dict[str, Any]) -> None:
        """Scores something else altogether."""
        self._put(of["side"], keep, self.share(self.random()) * np.float32(self.run.spread))

    def _noise(self, keep: np.ndarray, of: dict[str, Any]) -> None:
        size, draw = of["size"], self.share(self.random())
        if of.get("heavy"):
            draw = (
                draw * self.share(np.exp(of["heavy"] * self.rng.standard_normal(len(draw)) - of["heavy"] ** 2))[:, None]
            )
        self._put(of["side"], keep, self._of(of["side"]) + np.float32(size) * draw)

    def _hot(self, keep: np.ndarray, of: dict[str, Any]) -> None:
        """One side's logits have another temperature."""
        self._put(of["side"], keep, self._of(of["side"]) / np.float32(of["by"]))

    def _unreported(self, keep: np.ndarray, of: dict[str, Any]) -> None:
        """Sampled at another temperature than is reported, and than the trainer has."""
        self.sampled = np.where(keep[:, None], self.sampled / np.float32(of["by"]), self.sampled)

    def _bias(self, keep: np.ndarray, of: dict[str, Any]) -> None:
        """Some tokens are preferred, by a processor that only one side has."""
        some = np.arange(self.run.vocabulary) % 3 == 0
        self._put(of["side"], keep, self._of(of["side"]) + np.float32(of["size"]) * some)

    def _top(self, keep: np.ndarray, of: dict[str, Any]) -> None:
        """One side renormalises over a nucleus."""
        self._put("engine", keep, cut(self.reported, of["mass"]))

    def _rows(self, keep: np.ndarray, of: dict[str, Any]) -> None:
        """Padded rows take probability in one side's report."""
        side = "trainer" if of["side"] == "trainer" else "engine"
        z = self._of(side)
        top = z.max(-1)
        whole = np.log(np.exp(z - top[:, None]).sum(-1)) + top
        self.more[side] += np.where(keep, np.logaddexp(whole, np.log(of["rows"])) - whole, 0)

    def _shard(self, keep: np.ndarray, of: dict[str, Any]) -> None:
        """The normaliser of one shard of the vocabulary instead of all: log-probs of half a softmax."""
        side = "trainer" if of["side"] == "trainer" else "engine"
        p = np.exp(softlog(self._of(side)))
        self.more[side] += np.where(keep, np.log(p[:, ::2].sum(-1) + 1e-6), 0)

    def _count(self, keep: np.ndarray) -> np.ndarray:
        """How many updates the engine has missed at each step, [S]."""
        steps = np.zeros(self.run.steps)
        on = np.zeros(self.run.steps, bool)
        on[np.unique(self.step[keep.any(1)])] = True
        count = 0
        for s in range(self.run.steps):
            count = count + 1 if on[s] else 0
            steps[s] = count
        return steps[self.step]

    def _behind(self, keep: np.ndarray, of: dict[str, Any]) -> None:
        count = self.missed[id(of)][self.active]
        size = of["size"] * count ** (of.get("power", 1.0) / 2)
        self._put("trainer", keep, self.trained + size[:, None] * self.share(self.random()))

    def _initial(self, keep: np.ndarray, of: dict[str, Any]) -> None:
        """The engine keeps the weights that the run began with."""
        size = of["size"] * np.sqrt(self.step[self.active])
        self._put("trainer", keep, self.trained + size[:, None] * self.share(self.random()))

    def _penalty(self, keep: np.ndarray, of: dict[str, Any]) -> None:
        """The engine divides the logits of the last four tokens, or multiplies those below 0."""
        z, rows = self.reported.copy(), np.arange(len(keep))
        for back in range(1, min(self.place, 4) + 1):
            before = self.token[self.active, self.place - back]
            z[rows, before] = np.where(z[rows, before] > 0, z[rows, before] / of["by"], z[rows, before] * of["by"])
        self._put("engine", keep, z)

    def _sticky(self, keep: np.ndarray, of: dict[str, Any]) -> None:
        """The sampler uses a random number again and draws the last token once more."""
        if self.place:
            only = np.full(self.sampled.shape, -1e4, np.float32)
            only[np.arange(len(keep)), self.token[self.active, self.place - 1]] = 0
            self.sampled = np.where(keep[:, None], only, self.sampled)

    def _draft(self, keep: np.ndarray, of: dict[str, Any]) -> None:
        """Reports what a draft model thinks of the token."""
        self._put("report", keep, self.reported * np.float32(0.7) + np.float32(of["size"]) * self.random())

    def _greedy(self, keep: np.ndarray, of: dict[str, Any]) -> None:
        self._put("engine", keep, self.reported * np.float32(1e4))

    def _prompts(self, keep: np.ndarray, of: dict[str, Any]) -> None:
        """Every so many prompts are computed otherwise, which no column tells."""
        hit = keep & (self.prompt[self.active] * 7919 % of["each"] == 0)
        self._put(of["side"], hit, self._of(of["side"]) + np.float32(of["size"]) * self.random())

    # ------------------------------------------------------------------------------------------------ faults of reports

    def _side(self, of: dict[str, Any]) -> np.ndarray:
        return self.t if of["side"] == "trainer" else self.r

    def _zeros(self, keep: np.ndarray, of: dict[str, Any]) -> None:
        self._side(of)[keep] = 0.0

    def _value(self, keep: np.ndarray, of: dict[str, Any]) -> None:
        self._side(of)[keep] = float(of["value"])

    def _scaled(self, keep: np.ndarray, of: dict[str, Any]) -> None:
        self._side(of)[keep] *= np.float32(of["by"])

    def _probability(self, keep: np.ndarray, of: dict[str, Any]) -> None:
        side = self._side(of)
        side[keep] = np.exp(side[keep])

    def _rows_swapped(self, keep: np.ndarray, of: dict[str, Any]) -> None:
        """Rows of one step come back in another order."""
        side, rows = self._side(of), np.flatnonzero(keep.any(1))
        old = side.copy()
        for step in np.unique(self.step[rows]):
            some = rows[self.step[rows] == step]
            for to, of_row in zip(some, np.roll(some, 1), strict=True):
                n = self.lengths[to]
                side[to, :n] = np.resize(old[of_row, : self.lengths[of_row]], n)

    def _constant(self, keep: np.ndarray, of: dict[str, Any]) -> None:
        self._side(of)[keep] -= np.float32(of["by"])

    def _floor(self, keep: np.ndarray, of: dict[str, Any]) -> None:
        side = self._side(of)
        side[keep] = np.maximum(side[keep], np.float32(of["least"]))

    def _shifted(self, keep: np.ndarray, of: dict[str, Any]) -> None:
        """One token late (1) or early (−1); the token at the edge keeps its own."""
        side, by = self._side(of), of["by"]
        there = np.arange(self.L)[None, :] - by
        there = np.where((there < 0) | (there >= self.lengths[:, None]), there + by, there)
        side[keep] = np.take_along_axis(side, there, 1)[keep]

    def _same(self, keep: np.ndarray, of: dict[str, Any]) -> None:
        """One array was passed for both sides."""
        if of.get("side") == "trainer":
            self.t[keep] = self.r[keep]
        else:
            self.r[keep] = self.t[keep]

    def _end(self, keep: np.ndarray, of: dict[str, Any]) -> None:
        """An end token that was never sampled, with a placeholder."""
        last = keep & (self.token_groups["from_end"] == 0)
        self.token[last] = 1
        self.r[last] = float(of["value"])
        self.t[last] = -2.0 - self.rng.random(int(last.sum())).astype(np.float32) * 6

    # ------------------------------------------------------------------------------------------------ looks

    def before(self, step: int) -> Drawn:
        """The run as it stood when this step was still to come."""
        part = copy.copy(self)
        n = int(np.searchsorted(self.step, step))
        part.run, part.size = replace(self.run, steps=step), n
        for name in ("step", "prompt", "lengths", "inside", "lag", "version", "token", "r", "t"):
            setattr(part, name, getattr(self, name)[:n])
        part.sequence_groups = {name: values[:n] for name, values in self.sequence_groups.items()}
        part.token_groups = {name: values[:n] for name, values in self.token_groups.items()}
        part.where = [keep[:n] for keep in self.where]
        return part

    def named(self, columns: Mapping[str, Any]) -> np.ndarray:
        """Tokens of some values of some columns [S, L]."""
        keep = self.inside.copy()
        for column, values in columns.items():
            if column == "version":
                keep &= np.isin(self._labels()[0], list(values))
            elif column == "lag":
                keep &= np.isin(self._labels()[1], list(values))
            else:
                keep &= np.isin(self._values(column), list(values))
        return keep


def _rounded(z: np.ndarray, bits: int) -> np.ndarray:
    """Floats of so many bits of mantissa (bfloat16: 8)."""
    unit = np.exp2(np.floor(np.log2(np.maximum(np.abs(z), 1e-6))) - (bits - 1))
    return (np.round(z / unit) * unit).astype(np.float32)
