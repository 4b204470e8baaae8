"""The page docs/causes.md, written from the declarations so that it cannot disagree with what is found.

python -m logprobe.monitor.diagnosis.docs_page > docs/causes.md
"""

from __future__ import annotations

from typing import Final

from logprobe.monitor.diagnosis.causes import CAUSES
from logprobe.monitor.diagnosis.causes.cause import CERTAIN, CREDIBLE, INFERRED, KNOWN, LIKELY, POSSIBLE, Cause
from logprobe.monitor.diagnosis.evidence.evidence import SLIGHT
from logprobe.monitor.diagnosis.evidence.gather import SAMPLE_TOKENS
from logprobe.monitor.diagnosis.evidence.measures import SIGNIFICANT
from logprobe.monitor.diagnosis.levels import ABOVE, PRIORS
from logprobe.monitor.diagnosis.result import LAYERS
from logprobe.monitor.metrics.docs_page import cell

_TITLES: Final = {
    "semantic": "Semantic: the engine's log-probs do not mean what the trainer expects",
    "inference_path": "Inference path: the engine computes a different function",
    "objective": "Objective: right log-probs of different policies",
}

INTRODUCTION: Final = f"""\
# Causes

Generated from the declarations by `python -m logprobe.monitor.diagnosis.docs_page`; do not edit.

Layers are ruled out in this order. Within a layer the strongest finding (confidence × effect) is removed from the
evidence first, then the rest is examined again: both sides are brought to one temperature; requests with a stale cache,
a bad replica or old weights are left out.

| confidence | basis |
|---|---|
| {CERTAIN} | configuration and numbers agree, or it was counted |
| {KNOWN} | the configuration or the records say so |
| {INFERRED} | numbers alone, by a test that only this cause passes |
| {LIKELY} | numbers alone, by elimination |
| {POSSIBLE} | other causes would look the same; below {CREDIBLE} a finding does not decide the layer |

The tests behind them:

- **Which side was sampled from?** E[ρ] = 1 if `r` is the distribution sampled from, however large the mismatch; E[1/ρ]
  = 1 if `t` is. A mean counts as off at {SIGNIFICANT:g} standard errors, clustered by sequence.
- **How do tokens of one context differ?** Answers to one prompt start alike; where they diverge, two tokens were drawn
  from one distribution, and its normaliser cancels in the difference of their log-probs. Two temperatures: Δt = β·Δr
  exactly. A truncation, grammar or padding: Δt = Δr exactly. bfloat16 logits: Δ is a multiple of 2⁻⁸, by chance one in
  200. Other weights, caches and noise: none of these. This needs two answers to a prompt and raw tokens; without them
  the tests are weaker, and so is the confidence.
- **When and where?** A lasting rise of mean |d| among tokens labelled with the trainer's own weights; requests with and
  without cached tokens; tokens after a switch of the weight version compared with others of the same version; replicas
  at the same version; lag.
- **Is the noise normal for this setup?** Noise from precision, quantisation or MoE routing within {ABOVE:g} times the
  upper end of the table "What a set-up should have" is informational: it is listed, changes no verdict and vetoes no
  correction. So is noise in an unknown setup. Below K3 {SLIGHT:g} nothing is inferred from its size.

Numbers come from statistics of every sequence, per-token tests from at most {SAMPLE_TOKENS:,} raw tokens spread over
the window. Records that three later steps have not overtaken count as still arriving, not as missing.
"""


def page() -> str:
    """The whole page as Markdown."""
    sections = (f"## {_TITLES[layer]}\n\n{_table([c for c in CAUSES if c.layer == layer])}\n" for layer in LAYERS)
    return "\n".join([INTRODUCTION, *sections, f"## What a set-up should have\n\n{_priors()}\n"])


def _priors() -> str:
    """The table of levels, with the source of each row."""
    head = ["| engine | trainer | model | 8 bits or fewer | K3 from | to | source |", "|---|---|---|---|---|---|---|"]
    models = {True: "experts", False: "dense", None: "any"}
    return "\n".join(
        head
        + [
            f"| {_either(p.engine)} | {_either(p.trainer)} | {models[p.experts]} | {'yes' if p.quantized else 'no'} | {p.low:g} | {p.high:g} | {cell(p.source)} |"
            for p in PRIORS
        ]
    )


def _either(precisions: tuple[str, ...] | None) -> str:
    names = {"full": "float32", "half": "float16", "bf16": "bf16"}
    return "any" if precisions is None else " or ".join(names[precision] for precision in precisions)


def _table(causes: list[Cause]) -> str:
    head = ["| cause | what is wrong | evidence | remedy |", "|---|---|---|---|"]
    return "\n".join(head + [f"| `{c.name}` | {cell(c.words)} | {cell(c.looks_at)} | {cell(c.fix)} |" for c in causes])


if __name__ == "__main__":
    print(page(), end="")  # noqa: T201
