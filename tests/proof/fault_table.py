"""The table of planted faults in tests/RESULTS.md, from what `prove.py` kept of each."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from planted import FAULTS, Fault

RUN: Final = "recorded-run"
OF_RUN: Final = Fault(
    "raw log-probs at T = 0.7, in a recorded run",
    ("engine",),
    ("logprobs_mode",),
    engine={"logprobs_mode": "raw_logprobs"},
)
IMPORTED: Final = "imported-run"
OF_IMPORT: Final = replace(FAULTS["bf16"], words="engine in bfloat16, in an imported run")
ALL: Final[Mapping[str, Fault]] = {**FAULTS, RUN: OF_RUN, IMPORTED: OF_IMPORT}
_SMALL: Final = 0.1
Document = dict[str, Any]


def right(fault: Fault, document: Document) -> bool:
    """Both commands name the culprits, the knob is the first arm, and the smallest set is the faults and nothing else."""
    found, culprits = document["bisect"], set(fault.departs)
    if {*document["score"]["departs_all"]} != culprits or {*found["departs_all"]} != culprits:
        return False
    if not culprits:
        return found["departs"] == document["score"]["departs"] == "none" and not found["arms"]
    first = found["arms"][0]["knob"]
    return first in fault.knobs and {*found["smallest_set"]} == {*fault.knobs} and document.get("diagnosed", True)


def kept(folder: Path) -> dict[str, Document]:
    """Results by fault, of this call and earlier ones."""
    files = {name: folder / f"{name}.json" for name in ALL}
    return {name: json.loads(file.read_text()) for name, file in files.items() if file.exists()}


def lines(found: Mapping[str, Document], before: Mapping[str, list[str]]) -> Iterator[str]:
    """The table, in Markdown; of faults without a result, the row that the page has: `before`, by its first cell."""
    yield "| planted | K3 of r, t | first arm | named | ran, by the rules of |"
    yield "|---|---|---|---|---|"
    for name, fault in ALL.items():
        cells = _row(fault, found[name]) if name in found else before.get(fault.words)
        if cells is not None:
            yield f"| {' | '.join(cells)} |"
    if not found:
        return
    floors = [document["bisect"]["baseline"]["noise_floor"] for document in found.values()]
    yield ""
    yield f"The largest noise floor of these rows, K3 between two engines with the same settings, was {brief(max(floors))}."


def _row(fault: Fault, document: Document) -> list[str]:
    named = "yes" if right(fault, document) else "**no**"
    ran = document["ran"]
    return [fault.words, *_cells(document["bisect"]), named, f"{ran['on']}, {ran['rules']}"]


def _cells(found: Document) -> Iterator[str]:
    yield brief(found["baseline"]["k3"])
    first = found["arms"][0] if found["arms"] else None
    yield "–" if first is None else f"`{first['knob']}`: {first['setting']}"


def brief(k3: float) -> str:
    """Two digits, as people write them: 0, 0.17, 1.5e-2."""
    return f"{k3:.1e}".replace("e-0", "e-") if 0 < k3 < _SMALL else f"{k3:.2g}"


def share(arm: Document) -> str:
    """What an arm removes, with its interval: `99.9 % [97, 100]`."""
    if arm["removed"] is None:
        return "–"
    bounds = f" [{', '.join(f'{100 * bound:.0f}' for bound in arm['interval'])}]" if arm["interval"] else ""
    return f"{arm['removed']:.1%}".replace("%", " %") + bounds
