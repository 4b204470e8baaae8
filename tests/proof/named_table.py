"""The table of tests/RESULTS.md that says how often a wrong setting is named, from what trainers.py and engine_faults.py kept.

    python tests/proof/named_table.py FOLDER [SITUATION … | --table]

Runs all situations, or these of engines, or none; the unseen ones last. Rows without a result stay as the page has them.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import engine_faults
import page
import trainers
import unseen

_NEW: Final = frozenset(
    {
        "experts-bf16", "experts-routes", "experts-routes-unrecorded", "experts-adapter", "window-unrecorded", "bf16-unrecorded",
        "raw-penalty", "raw-bf16", "top-k-noted", "frequency", "fp16",
    }
)  # fmt: skip
_OLD: Final = [name for name in engine_faults.FAULTS if name not in _NEW]
HEADER: Final = (
    "| situations | ran | wrong setting named | the setting named, where there is one | right side | ran, by the rules of |",
    "|---|---|---|---|---|---|",
)


@dataclass(frozen=True)
class Answer:
    """Of one situation: `has_setting` that should be named; `wrong`: what is wrong with it, in words; `ran`: day and rules."""

    has_setting: bool
    wrong: str
    ran: str


def row(name: str, of: int, answers: Sequence[Answer]) -> str:
    """Counts over the situations that ran.

    >>> row("engines", 3, [Answer(True, "", "then"), Answer(False, "wrong side none", "then")])
    '| engines | 2 of 3 | 0 | 1 of 1 | 1 of 2 | then |'
    """
    settings = [answer for answer in answers if answer.has_setting]
    wrong = sum(answer.wrong.startswith("WRONG") for answer in answers)
    named = sum(not answer.wrong for answer in settings)
    sides = sum(not answer.wrong.startswith("wrong side") for answer in answers)
    ran = "; ".join(dict.fromkeys(answer.ran for answer in answers))
    cells = [name, f"{len(answers)} of {of}", wrong, f"{named} of {len(settings)}", f"{sides} of {len(answers)}", ran]
    return f"| {' | '.join(map(str, cells))} |"


def _ran(document: Mapping[str, Any]) -> str:
    return f"{document['ran']['on']}, {document['ran']['rules']}"


def _of_trainers(folder: Path, which: str) -> list[Answer]:
    file = folder / f"trainers-{which}.json"
    if not file.exists():
        return []
    kept = json.loads(file.read_text())
    documents = [document for kind in kept["found"].values() for document in kind.values()]
    return [Answer(bool(one["expected"]), trainers.judged(one), _ran(kept)) for one in documents]


def _of_engines(folder: Path, names: Sequence[str]) -> list[Answer]:
    documents = {name: json.loads(file.read_text()) for name in names if (file := folder / f"{name}.json").exists()}
    faults = {name: engine_faults.fault_of(name) for name in documents}
    return [
        Answer(bool(faults[name].knobs), engine_faults.judged(faults[name], document), _ran(document))
        for name, document in documents.items()
    ]


def lines(folder: Path, before: Mapping[str, list[str]]) -> Iterator[str]:
    """The table; of sets without a result, the row that the page has: `before`, by its first cell."""
    sets = {
        "developed": trainers.DEVELOPED,
        "held_out": trainers.HELD_OUT,
        "further": trainers.FURTHER,
        "unseen": unseen.TRAINERS,
    }
    words = {
        "developed": "trainers, the rules were written against them",
        "held_out": "trainers, written before the rules",
        "further": "trainers, written on 2026-11-25",
        "unseen": "trainers, written on 2026-11-25 and looked at when all else was done",
    }
    rows = [(words[which], len(of) * len(trainers.KINDS), _of_trainers(folder, which)) for which, of in sets.items()]
    rows += [
        ("engines, written before 2026-11-25", len(_OLD), _of_engines(folder, _OLD)),
        ("engines, written on 2026-11-25", len(_NEW), _of_engines(folder, sorted(_NEW))),
        (
            "engines, written on 2026-11-25 and looked at when all else was done",
            len(unseen.ENGINES),
            _of_engines(folder, [*unseen.ENGINES]),
        ),
    ]
    yield from HEADER
    for name, of, answers in rows:
        if answers:
            yield row(name, of, answers)
        elif name in before:
            yield f"| {' | '.join(before[name])} |"


def main(folder: Path, names: Sequence[str]) -> int:
    here = Path(__file__).parent
    scripts = (
        [["trainers.py", str(folder), which] for which in ("developed", "held_out", "further", "unseen")]
        if not names
        else []
    )
    if names != ["--table"]:
        scripts.append(["engine_faults.py", str(folder), *names])
    if not names:
        scripts.append(["engine_faults.py", str(folder), "--unseen"])
    wrong = [
        bool(subprocess.run([sys.executable, str(here / script), *given], check=False).returncode)
        for script, *given in scripts
    ]
    page.write("named", lines(folder, page.rows("named")))
    return any(wrong)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2:]))
