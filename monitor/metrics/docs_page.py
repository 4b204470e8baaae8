"""The page docs/metrics.md, written from the catalog so that it cannot disagree with what is computed.

python -m logprobe.monitor.metrics.docs_page > docs/metrics.md
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from logprobe.monitor.metrics.definition import Metric
from logprobe.monitor.metrics.pair_metrics import PAIR_METRICS
from logprobe.monitor.metrics.step_metrics import STEP_METRICS

INTRODUCTION: Final = """\
# Metrics

Generated from the catalog by `python -m logprobe.monitor.metrics.docs_page`; do not edit.

| symbol | meaning |
|---|---|
| `r` | rollout log-probability: what the engine reported for the token it sampled |
| `t` | trainer log-probability of the same token, recomputed before the update ("old") |
| `c` | trainer log-probability of the same token now ("current") |
| `d` | log-ratio of a pair, policy − behaviour; `ρ = exp(clamp(d, ±20))` |

| pair | `d` | answers |
|---|---|---|
| `backend` | `t − r` | do engine and trainer agree about the same tokens? |
| `update` | `c − t` | how far has the optimizer moved within this step? |
| `total` | `c − r` | what an objective without old log-probs sees |

A token mean is over all valid tokens of the whole step, a sequence mean over the means of its non-empty sequences;
sums are float64. **A broken token never looks healthy**: values that are not finite, above 0, or known sentinels are
counted by kind, left out of the means, and lower `coverage`. What cannot be measured is null, and so is any value of a
step without a valid token.

The same numbers for arrays in memory: padded [batch, time], packed with `cu_seqlens`, or lists of sequences; numpy,
torch or plain lists:

```python
from logprobe.monitor import metrics

values = metrics.compute(rollout_logprobs, trainer_logprobs, mask, current_logprobs=current_logprobs)
values["backend.k3_kl"]

# Over ranks or micro-batches: statistics per sequence merge exactly into those of the whole batch.
parts = [metrics.statistics(r, t, m) for r, t, m in micro_batches]
metrics.from_statistics(metrics.merge(*parts))["backend.k3_kl"]
```
"""


def page() -> str:
    """The whole page as Markdown."""
    return "\n".join(
        [
            INTRODUCTION,
            "## Metrics of a pair\n",
            "Stored as `<pair>.<key>`, for example `backend.k3_kl`. Each needs the log-probs of both sides of its pair.\n",
            _table(PAIR_METRICS),
            "",
            "## Metrics of a step\n",
            _table(STEP_METRICS),
            "",
        ]
    )


def _table(metrics: Sequence[Metric]) -> str:
    head = [
        "| key | formula | over | unit | worse when | meaning | needs | also reported by |",
        "|---|---|---|---|---|---|---|---|",
    ]
    return "\n".join(head + [_row(metric) for metric in metrics])


def _row(metric: Metric) -> str:
    cells = (
        f"`{metric.key}`",
        cell(metric.formula),
        metric.grain,
        cell(metric.unit),
        metric.worse,
        cell(metric.words),
        ", ".join(metric.needs),
        cell(metric.source),
    )
    return f"| {' | '.join(cells)} |"


def cell(text: str) -> str:
    """Text for a cell of a table in Markdown."""
    return text.replace("|", "\\|").replace("\n", " ")


if __name__ == "__main__":
    print(page(), end="")  # noqa: T201
