"""The page docs/causes.md, written from the declarations so that it cannot disagree with what is found.

python -m logprobe.monitor.diagnosis.docs_page > docs/causes.md
"""

from __future__ import annotations

from typing import Final

from logprobe.monitor.diagnosis.causes import CAUSES
from logprobe.monitor.diagnosis.causes.cause import CERTAIN, INFERRED, KNOWN, LIKELY, POSSIBLE, Cause
from logprobe.monitor.diagnosis.diagnose import CREDIBLE
from logprobe.monitor.diagnosis.evidence import HEALTHY, SLIGHT
from logprobe.monitor.diagnosis.gather import SAMPLE_TOKENS
from logprobe.monitor.diagnosis.measures import SIGNIFICANT
from logprobe.monitor.diagnosis.result import LAYERS

_TITLES: Final = {
    "semantic": "Semantic: the engine's log-probs mean something else than the trainer expects",
    "inference_path": "Inference path: the engine computes another function",
    "objective": "Objective: right log-probs of different policies",
}

INTRODUCTION: Final = f"""\
# Causes

Written from the declarations by `python -m logprobe.monitor.diagnosis.docs_page`; do not edit.

Layers are ruled out in this order. Within a layer the strongest finding (confidence × effect) is taken out of the evidence first, then what
is left is looked at again: both sides are brought to one temperature, requests with a stale cache, a bad replica or old weights are left out.

| confidence | stands on |
|---|---|
| {CERTAIN} | configuration and numbers agree, or it was counted |
| {KNOWN} | the configuration or the records say so |
| {INFERRED} | numbers alone, by a test that only this cause passes |
| {LIKELY} | numbers alone, by elimination |
| {POSSIBLE} | others would look the same; below {CREDIBLE} a finding decides no layer |

What the numbers are asked:

- **Which side was sampled from?** E[ρ] = 1 when `r` is the distribution sampled from, however large the gap; E[1/ρ] = 1 when `t` is. A mean
  counts as off at {SIGNIFICANT:g} standard errors, clustered by sequence.
- **What do tokens of one context differ by?** Answers to one prompt begin alike; where they part, two tokens were drawn from one
  distribution, and its normaliser cancels in the difference of their log-probs. Two temperatures: Δt = β·Δr exactly. A truncation,
  grammar or padding: Δt = Δr exactly. bfloat16 logits: Δ is a multiple of 2⁻⁸, by chance one in 200. Other weights, caches and noise: none
  of these. This needs two answers to a prompt and raw tokens; without them the tests are weaker, and confidence with them.
- **When and where?** A lasting rise of the gap among tokens said to be of the trainer's own weights; requests with and without cached
  tokens; tokens after a switch of the weight version against others of the same version; replicas at the same version; lag.
- K3 up to {HEALTHY:g} is what others report as healthy for dense models. Rounding in that range is named when the logits or the configuration give
  it away, changes no verdict, and advises no correction. Noise of unknown origin in that range is healthy. Below {SLIGHT:g} nothing is
  inferred from its size.

Numbers come from statistics of every sequence, per-token tests from at most {SAMPLE_TOKENS:,} raw tokens spread over the window. Records that
three later steps have not overtaken are on their way, not missing.
"""


def page() -> str:
    """The whole page as Markdown."""
    sections = (f"## {_TITLES[layer]}\n\n{_table([c for c in CAUSES if c.layer == layer])}\n" for layer in LAYERS)
    return "\n".join([INTRODUCTION, *sections])


def _table(causes: list[Cause]) -> str:
    head = ["| cause | what is wrong | told by | remedy |", "|---|---|---|---|"]
    return "\n".join(
        head + [f"| `{c.name}` | {_cell(c.words)} | {_cell(c.looks_at)} | {_cell(c.fix)} |" for c in causes]
    )


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


if __name__ == "__main__":
    print(page(), end="")  # noqa: T201
