"""Rollouts with real forward passes: a small recurrent language model, run once as an engine and once as a trainer.

Nothing is added to log-probs. An engine holds its weights and activations in a 16-bit or 8-bit dtype, samples token by token until a
stop token, and reports what it computed; the trainer computes the same tokens again. Weights move at every step. Faults are what goes
wrong between the two: older weights, other inputs, other distributions.

Dimensions: ``K`` weight versions, ``U`` units (prompts of a few steps; one weight version each), ``A`` answers, ``H`` hidden, ``V`` vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from run_columns import Columns, known_by
from torch import Tensor
from torch.nn.functional import one_hot

from logprobe.monitor.judging.frame import Frame
from logprobe.monitor.judging.records import Weights
from logprobe.monitor.judging.setup import Setup

HIDDEN = 32
ASKED = 5  # tokens of a prompt
STOP = 0
REPLICAS = 4
KEPT = 30_000  # raw tokens that a diagnosis gets to see
_STEPS = 20  # computed at a time: their logits stay in the processor's cache
_DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16}
_LARGEST = 448.0  # float8_e4m3fn
Params = dict[str, Tensor]


@dataclass(frozen=True)
class Lag:
    """Versions behind the trainer, drawn for each prompt; from `onset` on one more every `every` steps."""

    versions: tuple[int, ...] = (0,)
    known: bool = True
    onset: int | None = None
    every: int = 8


@dataclass(frozen=True)
class Policy:
    """How the policy goes. `pace`: relative change of weights in a step; `entropy`: what logits are multiplied by, first and last, from
    step `since` on; `longer`: tokens by which answers get longer; `lessons`: steps from one kind of prompts to the next, 0 for none."""

    pace: float = 2e-3
    entropy: tuple[float, float] = (1.0, 1.0)
    since: int = 0
    longer: float = 0.0
    lessons: int = 0
    experts: int = 0


@dataclass(frozen=True)
class Drift:
    """From `onset` on the engine's optimizer departs: K3 doubles every `doubling` steps."""

    onset: int | None = None
    doubling: float = 30.0
    size: float = 1e-3  # relative difference of weights at the onset


@dataclass(frozen=True)
class Fault:
    """What is wrong, how much of it, and at which steps."""

    kind: str = ""
    size: float = 0.0
    since: int = 0
    until: int = 1_000_000
    told: bool = True  # the configuration or the records say so, where they can


@dataclass(frozen=True)
class Run:
    """One run of two forward passes."""

    seed: int = 0
    steps: int = 400
    prompts: int = 8
    answers: int = 6
    length: int = 48
    vocabulary: int = 256
    engine: str = "bfloat16"
    trainer: str = "float32"
    temperature: float = 1.0
    policy: Policy = Policy()
    lag: Lag = Lag()
    drift: Drift = Drift()
    fault: Fault = Fault()
    setup: Setup = field(default_factory=Setup)
    weights: Weights = field(default_factory=Weights)
    raw: bool = True

    @property
    def drifts(self) -> int | None:
        """Step from which policies drift apart."""
        return self.drift.onset

    def rollouts(self) -> Rollouts:
        """Draws it."""
        torch.set_num_threads(1)
        with torch.no_grad():
            return _rollouts(self)


@dataclass(frozen=True)
class Rollouts:
    """What was recorded of a run."""

    run: Run
    columns: Columns
    other_ids: np.ndarray  # of each sequence, whether the trainer has other tokens

    def frame(self, last: int | None = None) -> Frame:
        """What a diagnosis sees when `last` is the newest step."""
        keep = self.columns.step <= (self.run.steps if last is None else last)
        run, columns = self.run, self.columns.where(keep)
        parts = max(1, round(columns.mask.sum() / KEPT))  # all answers to some prompts of every step are kept
        return columns.frame(
            setup=run.setup,
            kept=run.raw and columns.group % parts == 0,
            joins={"other_ids": int(self.other_ids[keep].sum())},
            weights=known_by(run.weights, int(columns.step.max())),
        )


# Weights


def _versions(run: Run, generator: torch.Generator) -> Params:
    """The trainer's weights at each step [K, …]: a walk whose updates go on in a similar direction."""
    fade = torch.linspace(0, 1, run.steps)
    first = _first(run, generator)
    params = {name: value + _walk(run, value, generator) for name, value in first.items()}
    begin, end = run.policy.entropy
    ramp = ((torch.arange(run.steps) - run.policy.since) / max(run.steps - run.policy.since, 1)).clamp(0, 1)
    params["head"] = params["head"] * (begin * (end / begin) ** ramp)[:, None, None]
    params["patience"] = run.length * 0.55 + run.policy.longer * fade  # place at which an answer is likely to end
    return params


def _first(run: Run, generator: torch.Generator) -> Params:
    def normal(*shape: int, scale: float) -> Tensor:
        return torch.randn(shape, generator=generator) * scale

    some = {
        "tokens": normal(run.vocabulary, HIDDEN, scale=1.0),
        "input": normal(HIDDEN, 3 * HIDDEN, scale=1.2 / HIDDEN**0.5),
        "state": normal(HIDDEN, 3 * HIDDEN, scale=1.2 / HIDDEN**0.5),
        "head": normal(HIDDEN, run.vocabulary, scale=13.0 / HIDDEN**0.5),
    }
    if run.policy.experts:
        some["router"] = normal(HIDDEN, run.policy.experts, scale=1.5 / HIDDEN**0.5)
        some["experts"] = normal(run.policy.experts, HIDDEN, HIDDEN, scale=0.8 / HIDDEN**0.5)
    return some


def _walk(run: Run, value: Tensor, generator: torch.Generator, memory: float = 0.8) -> Tensor:
    steps = torch.randn(run.steps, *value.shape, generator=generator)
    for k in range(1, run.steps):
        steps[k].mul_((1 - memory**2) ** 0.5).add_(steps[k - 1], alpha=memory)
    return steps.cumsum_(0).mul_(run.policy.pace * float(value.std()))


def _engines(run: Run, trainer: Params, generator: torch.Generator) -> Params:
    """What the engine would hold of each version, had it all updates and enough bits."""
    params = dict(trainer)
    if run.drift.onset is not None:
        params |= {
            name: trainer[name] + _departure(run, trainer[name], generator) for name in ("input", "state", "head")
        }
    if run.fault.kind == "partial_update":
        for name in ("head",) if run.fault.size else ("input", "state"):
            params[name] = trainer[name].clone()
            params[name][run.fault.since :] = trainer[name][run.fault.since]
    if run.fault.kind == "adapter_twice":
        low = [torch.randn(shape, generator=generator) for shape in ((HIDDEN, 2), (2, run.vocabulary))]
        params["head"] = trainer["head"] + run.fault.size * (low[0] @ low[1])
    return params


def _departure(run: Run, value: Tensor, generator: torch.Generator) -> Tensor:
    direction = torch.randn(value.shape[1:], generator=generator) * float(value[0].std())
    k = torch.arange(run.steps).float()
    ahead = (2 ** ((k - run.drift.onset).clamp(min=0) / (2 * run.drift.doubling)) - 1) * run.drift.size
    return ahead.view(-1, *[1] * direction.dim()) * direction


def _rounded(x: Tensor, dtype: str) -> Tensor:
    if dtype == "float32":
        return x
    if dtype == "fp8":
        scale = x.abs().amax(-1, keepdim=True).clamp(min=1e-12) / _LARGEST
        return (x / scale).to(torch.float8_e4m3fn).float() * scale
    return x.to(_DTYPES[dtype]).float()


# Passes


@dataclass(frozen=True)
class Side:
    """One side's arithmetic. `eager`: every intermediate value is rounded, not just what is stored."""

    dtype: str
    eager: bool
    params: Params
    version: Tensor  # of each unit [U]

    def part(self, name: str) -> Tensor:
        """Weights of each unit [U, …]."""
        return self.params[name][self.version]

    def loaded(self) -> Params:
        """… as they are stored, for all matrices."""
        names = [name for name in self.params if name not in {"tokens", "patience"}]
        return {name: _rounded(self.part(name), self.dtype) for name in names}

    def round(self, x: Tensor) -> Tensor:
        """Activations as they are stored; of 8-bit engines in bfloat16."""
        return _rounded(x, "bfloat16" if self.dtype == "fp8" else self.dtype)

    def between(self, x: Tensor) -> Tensor:
        return self.round(x) if self.eager else x

    def operand(self, x: Tensor) -> Tensor:
        """What goes into a matrix product."""
        return _rounded(x, self.dtype)

    def given(self, token: Tensor) -> Tensor:
        """Embeddings [U, A, H] of tokens [U, A]."""
        table = self.params["tokens"]
        rows = table.view(-1, HIDDEN)[(self.version[:, None] * table.shape[1] + token).view(-1)]
        return self.round(rows).view(*token.shape, HIDDEN)

    def cell(self, w: Params, token: Tensor, h: Tensor) -> Tensor:
        """The next state [U, A, H]."""
        x = self.operand(self.given(token))
        a, c = self.between(torch.bmm(x, w["input"])), self.between(torch.bmm(self.operand(h), w["state"]))
        reset, keep = (torch.sigmoid(part) for part in (a + c)[..., : 2 * HIDDEN].split(HIDDEN, -1))
        new = self.between(torch.tanh(a[..., 2 * HIDDEN :] + reset * c[..., 2 * HIDDEN :]))
        return self.round((1 - keep) * new + keep * h)

    def logits(self, w: Params, h: Tensor, gain: Tensor, ending: Tensor) -> Tensor:
        """[U, A, V]. `gain` [U]: how certain a kind of prompt lets it be; `ending` [U]: on the logit of the stop token."""
        if "router" in w:
            h = self.round(h + self._expert(w, h))
        z = torch.bmm(self.operand(h), w["head"]) * gain[:, None, None]
        z[..., STOP] = z[..., STOP] * 0.2 + ending[:, None]
        return self.round(z) if self.eager else z

    def _expert(self, w: Params, h: Tensor) -> Tensor:
        scores = self.between(torch.bmm(self.operand(h), w["router"]))
        chosen = one_hot(scores.argmax(-1), scores.shape[-1]).float()
        outputs = torch.tanh(torch.einsum("uah,uehg->uaeg", self.operand(h), w["experts"]))
        return (outputs * chosen[..., None]).sum(2)


@dataclass
class Chunk:
    """Some steps: prompts [U, A, ASKED] as each side has them, and what is known of each unit [U]."""

    run: Run
    step: Tensor
    prompt: Tensor
    answer: Tensor  # number of the answer among those to its prompt [U, A]
    replica: Tensor
    current: Tensor  # version that the engine samples from
    gain: Tensor
    generator: torch.Generator
    engine: Params
    trainer: Params

    @property
    def broken(self) -> Tensor:
        """Units at whose steps the fault is there."""
        return (self.step >= self.run.fault.since) & (self.step < self.run.fault.until)

    def ending(self, place: int) -> Tensor:
        """What the model adds to the logit of the stop token at a place."""
        return ((place - self.trainer["patience"][self.step]) * 0.35).clamp(-6, 6) + 4

    def uniform(self, *shape: int) -> Tensor:
        return torch.rand(shape, generator=self.generator)

    def fault(self, kind: str) -> bool:
        return self.run.fault.kind == kind


def _prompted(side: Side, prompt: Tensor) -> Tensor:
    w, h = side.loaded(), torch.zeros(*prompt.shape[:2], HIDDEN)
    for place in range(ASKED):
        h = side.cell(w, prompt[..., place], h)
    return h


def _sampled(chunk: Chunk) -> tuple[Tensor, Tensor, Tensor]:
    """Tokens, reported log-probs and mask [U, A, L]."""
    run = chunk.run
    side = Side(run.engine, eager=True, params=chunk.engine, version=chunk.current)
    h, w = _begin(chunk, side), side.loaded()
    tokens = torch.zeros(*h.shape[:2], run.length, dtype=torch.int64)
    reported, mask = torch.zeros(tokens.shape), torch.zeros(tokens.shape, dtype=torch.bool)
    alive = torch.ones(h.shape[:2], dtype=torch.bool)
    for place in range(run.length):
        z = side.logits(w, h, chunk.gain, chunk.ending(place))
        token, r = _draw(chunk, z, tokens[..., place - 1] if place else None)
        tokens[..., place], reported[..., place], mask[..., place] = token, r, alive
        alive &= token != STOP
        h = side.cell(w, token, h)
    return tokens, reported, mask


def _begin(chunk: Chunk, side: Side) -> Tensor:
    """States after the prompt. A stale cache has those of older weights, for all answers but the first."""
    prompt = chunk.prompt
    if chunk.fault("other_template"):
        prompt = prompt.clone()
        prompt[..., -2:] = torch.where(chunk.broken[:, None, None], torch.tensor([1, 2]), prompt[..., -2:])
    h = _prompted(side, prompt)
    if not chunk.fault("stale_prefix"):
        return h
    older = (chunk.current - int(chunk.run.fault.size)).clamp(min=chunk.run.fault.since or 0)
    stale = _prompted(replace(side, version=torch.minimum(older, chunk.current)), prompt)
    return torch.where(((chunk.answer > 0) & chunk.broken[:, None])[..., None], stale, h)


def _draw(chunk: Chunk, z: Tensor, before: Tensor | None) -> tuple[Tensor, Tensor]:
    """Tokens and the log-probs that the engine reports of them [U, A]."""
    run, size = chunk.run, chunk.run.fault.size
    hot = torch.where(chunk.broken, size, run.temperature) if chunk.fault("temperature") else run.temperature
    processed = z / (hot[:, None, None] if isinstance(hot, Tensor) else hot)
    if chunk.fault("top_p") or chunk.fault("top_k"):
        processed = _cut(processed, run.fault)
    known = torch.log_softmax(processed, -1)
    token = _pick(chunk, known.exp())
    if chunk.fault("loose_draft"):  # a draft model's tokens are accepted without a look
        token = torch.where(chunk.uniform(*token.shape) < size, _pick(chunk, torch.softmax(z / 1.6, -1)), token)
    if chunk.fault("sticky_sampler") and before is not None:  # the same random number twice: the last token again
        token = torch.where((chunk.uniform(*token.shape) < size) & (before != STOP), before, token)
    reports = torch.log_softmax(z, -1) if chunk.fault("raw") else known
    r = reports.gather(-1, token[..., None])[..., 0]
    if chunk.fault("reports_best"):
        r = torch.where(chunk.uniform(*r.shape) < size, reports.amax(-1), r)
    return token, r


def _pick(chunk: Chunk, p: Tensor) -> Tensor:
    total = p.cumsum(-1)
    at = chunk.uniform(*p.shape[:2])[..., None] * total[..., -1:]
    return torch.searchsorted(total, at, right=True)[..., 0].clamp(max=p.shape[-1] - 1)


def _cut(z: Tensor, fault: Fault) -> Tensor:
    if fault.kind == "top_k":
        return z.masked_fill(z < z.topk(int(fault.size), -1).values[..., -1:], -torch.inf)
    ordered, order = z.sort(-1, descending=True)
    p = torch.softmax(ordered, -1)
    out = torch.zeros(z.shape, dtype=torch.bool).scatter(-1, order, p.cumsum(-1) - p >= fault.size)
    return z.masked_fill(out, -torch.inf)


def _scored(chunk: Chunk, tokens: Tensor) -> Tensor:
    """The trainer's log-probs [U, A, L] of tokens as it has them."""
    run = chunk.run
    side = Side(run.trainer, eager=False, params=chunk.trainer, version=chunk.step)
    h, w = _prompted(side, chunk.prompt), side.loaded()
    scores = torch.zeros(tokens.shape)
    for place in range(run.length):
        seen = _dropped(chunk, h)
        z = side.logits(w, seen, chunk.gain, chunk.ending(place)) / run.temperature
        scores[..., place] = torch.log_softmax(z, -1).gather(-1, tokens[..., place, None])[..., 0]
        h = side.cell(w, tokens[..., place], h)
        if chunk.fault("short_memory") and place % int(run.fault.size) == int(run.fault.size) - 1:
            h = torch.where(chunk.broken[:, None, None], torch.zeros(()), h)
    return scores.clamp(min=run.fault.size) if chunk.fault("clamped") else scores


def _dropped(chunk: Chunk, h: Tensor) -> Tensor:
    if not chunk.fault("dropout"):
        return h
    keep = 1 - chunk.run.fault.size
    return torch.where(chunk.broken[:, None, None], h * (chunk.uniform(*h.shape) < keep) / keep, h)


def _wrong(chunk: Chunk, tokens: Tensor) -> Tensor:
    """The trainer's copy of the tokens."""
    if not chunk.fault("wrong_tokens"):
        return tokens
    other = torch.randint(1, chunk.run.vocabulary, tokens.shape, generator=chunk.generator)
    hit = (chunk.uniform(*tokens.shape) < chunk.run.fault.size) & (tokens != STOP) & chunk.broken[:, None, None]
    return torch.where(hit, other, tokens)


# Runs


def _rollouts(run: Run) -> Rollouts:
    generator = torch.Generator().manual_seed(run.seed)
    trainer = _versions(run, generator)
    engine = _engines(run, trainer, generator)
    parts, others = [], []
    for chunk, label in _chunks(run, engine, trainer, generator):
        tokens, r, mask = _sampled(chunk)
        copy = _wrong(chunk, tokens)
        t = _scored(chunk, copy)
        t = torch.where(chunk.broken[:, None, None], t.roll(1, -1), t) if chunk.fault("shifted") else t
        parts.append(_columns(chunk, label, copy, r, t, mask))
        others.append(((copy != tokens) & mask).any(-1).flatten().numpy())
    return Rollouts(run, Columns.joined(parts), np.concatenate(others))


def _chunks(run: Run, engine: Params, trainer: Params, generator: torch.Generator) -> Iterator[tuple[Chunk, Tensor]]:
    for first in range(0, run.steps, _STEPS):
        step = torch.arange(first, min(first + _STEPS, run.steps)).repeat_interleave(run.prompts)
        replica = torch.arange(len(step)) % run.prompts % REPLICAS
        prompt, gain = _asked(run, step, generator)
        label = (step - _lag(run, step, generator)).clamp(min=0)
        answer = torch.arange(run.answers).expand(len(step), -1)
        current = _current(run, step, replica, label)
        yield Chunk(run, step, prompt, answer, replica, current, gain, generator, engine, trainer), label


def _asked(run: Run, step: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Prompts [U, A, ASKED], and how certain they let the model be [U]: each lesson has its own words."""
    half = run.vocabulary // 2
    lesson = step // run.policy.lessons % 2 if run.policy.lessons else torch.zeros_like(step)
    words = torch.randint(3, half, (len(step), ASKED), generator=generator) + (lesson * (half - 3))[:, None]
    return words[:, None].expand(-1, run.answers, -1), 1 - 0.25 * lesson


def _lag(run: Run, step: Tensor, generator: torch.Generator) -> Tensor:
    lag = torch.tensor(run.lag.versions)[torch.randint(len(run.lag.versions), step.shape, generator=generator)]
    if run.lag.onset is None:
        return lag
    return lag + (step - run.lag.onset + run.lag.every).clamp(min=0) // run.lag.every


def _current(run: Run, step: Tensor, replica: Tensor, label: Tensor) -> Tensor:
    """The version that is sampled from, whatever its label says."""
    fault = run.fault
    broken = (step >= fault.since) & (step < fault.until)
    behind = (label - int(fault.size)).clamp(min=0)
    if fault.kind == "stale_replica":
        return torch.where(broken & (replica == 2), behind, label)
    if fault.kind == "stale_spell":
        return torch.where(broken, behind, label)
    if fault.kind == "tenth_missed":
        return torch.where(broken & (label % 10 == 9), behind, label)
    return label


def _columns(chunk: Chunk, label: Tensor, tokens: Tensor, r: Tensor, t: Tensor, mask: Tensor) -> Columns:
    run, (units, answers, length) = chunk.run, tokens.shape
    rows = lambda values: values.reshape(units * answers, length).numpy()
    each = lambda values: values.repeat_interleave(answers).numpy()
    step, unit = each(chunk.step), each(torch.arange(units))
    version = each(label).astype(float) if run.lag.known else np.full(units * answers, np.nan)
    return Columns(
        step=step,
        token=rows(tokens),
        r=np.where(rows(mask), rows(r), 0).astype(np.float32),
        t=np.where(rows(mask), rows(t), 0).astype(np.float32),
        mask=rows(mask),
        group=int(chunk.step[0]) * run.prompts + unit,
        version=np.repeat(version[:, None], length, 1),
        trainer_version=step.copy(),
        requests={
            "cached": (chunk.answer > 0).flatten().numpy(),
            "replica": np.array([f"replica-{code}" for code in each(chunk.replica).tolist()], object),
        },
    )
