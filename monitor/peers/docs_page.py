"""The page docs/peers.md, written from what the modules of the peers declare.

python -m logprobe.monitor.peers.docs_page > docs/peers.md
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from logprobe.monitor.peers.peer import CommonOptions, Peer, described
from logprobe.monitor.peers.view import PEERS

INTRODUCTION: Final = """\
# Metrics of other frameworks

Generated from the modules in `monitor/peers` by `python -m logprobe.monitor.peers.docs_page`; do not edit.

Every framework computes different numbers from the same tokens. A *view* recomputes what one of them logs, under its
own keys, with its own clamps, reductions and treatment of empty sequences, so that you can compare logprobe's numbers
with an existing dashboard:

```python
from logprobe.monitor import peers

values = peers.view("verl", rollout_logprobs, trainer_logprobs, mask, rollout_is="token", rollout_is_threshold=2.0)
values["rollout_corr/kl"]  # or values["kl"]: the name works without the logger's prefix too
peers.correction("slime", rollout_logprobs, trainer_logprobs, mask, use_tis=True).weights_BT
```

    logprobe metrics RUN --as verl --option rollout_is=token

Log-probs and mask are padded arrays [batch, time] or lists of 1-D arrays, from numpy, torch or plain lists.
`current_logprobs` and `advantages` add the metrics that need them. The batch is treated as one process with one
micro-batch: frameworks that average means over ranks or micro-batches log the mean of such views. `correction` returns
the importance weights and the loss mask that the framework applies.

Every framework computes in float32; views use float64, unless `dtype="float32"` asks for the rounding too. This matters
when engine and trainer nearly agree: exp(d) − d − 1 in float32 keeps one digit at |d| = 1e-3, where K3 is 5e-7, and
none at 1e-4.

Three differences apply to all of them, and logprobe's catalog deliberately does the opposite:

- **Broken tokens count.** None of them handles sentinels (−9999, +1.0, an exact 0.0); in most, one NaN spoils the whole
  step, and three treat it as a perfect match or weight 0. logprobe counts broken tokens by kind, leaves them out, and
  lowers `coverage`.
- **Empty sequences count**, as perplexity 1, ratio 1 or 0: a step with more masked-out sequences looks healthier.
  logprobe skips them.
- **Corrected numbers are logged** under names that sound raw: an ESS or a mean ratio after truncation cannot get worse
  than its bound. logprobe's are before any correction.
"""


def page() -> str:
    """The whole page as Markdown."""
    return "\n".join(
        [
            INTRODUCTION,
            "## NaN, missing values and empty sequences\n",
            _table(("framework", "treatment"), ((f"[{p.name}](#{p.name})", p.broken) for p in PEERS.values())),
            "",
            *(part for peer in PEERS.values() for part in _section(peer)),
        ]
    )


def _section(peer: Peer) -> list[str]:
    head = ("its key", "logprobe", "difference", "why it matters")
    rows = ((_code(d.theirs), _code(d.ours), d.how, d.why) for d in peer.differences)
    return [f"## {peer.name}\n", f"Formulas: {_code(peer.source)}\n", _table(head, rows), "", _options(peer), ""]


def _options(peer: Peer) -> str:
    common = {name for name, *_ in described(CommonOptions)}
    rows = (
        (f"`{name}`", f"`{_written(default)}`", words + _listed(choices))
        for name, default, choices, words in described(peer.options)
        if name not in common
    )
    return _table(("option", "default", "meaning"), rows)


def _listed(choices: Iterable[Any]) -> str:
    listed = ", ".join(f"`{_written(choice)}`" for choice in choices)
    return f": {listed}" if listed else ""


def _written(value: Any) -> str:
    return value if isinstance(value, str) else repr(value)


def _code(names: str) -> str:
    """Keys and paths as code; the words after them stay words."""
    return ", ".join(_first_as_code(part) for part in names.split(", "))


def _first_as_code(part: str) -> str:
    name, space, words = part.partition(" ")
    return part if name == "–" else f"`{name}`{space}{words}"


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [head, tuple("---" for _ in head), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


if __name__ == "__main__":
    print(page(), end="")  # noqa: T201
