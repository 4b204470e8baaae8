"""The table of tests/RESULTS.md that says how often a wrong setting is named, from what trainers.py and engine_faults.py kept.

    python tests/proof/named_table.py FOLDER [SITUATION … | --table]

Runs all situations, or these of engines, or none. Rows without a result stay as the page has them.
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


def _of_trainers(folder: Path) -> list[Answer]:
    file = folder / "trainers.json"
    if not file.exists():
        return []
    kept = json.loads(file.read_text())
    documents = [document for kind in kept["found"].values() for document in kind.values()]
    return [Answer(bool(one["expected"]), trainers.judged(one), _ran(kept)) for one in documents]


def _of_engines(folder: Path) -> list[Answer]:
    files = {name: folder / f"{name}.json" for name in engine_faults.FAULTS}
    documents = {name: json.loads(file.read_text()) for name, file in files.items() if file.exists()}
    faults = {name: engine_faults.FAULTS[name] for name in documents}
    return [
        Answer(bool(faults[name].knobs), engine_faults.judged(faults[name], document), _ran(document))
        for name, document in documents.items()
    ]


def lines(folder: Path, before: Mapping[str, list[str]]) -> Iterator[str]:
    """The table; a row without a result stays as the page has it: `before`, by its first cell."""
    rows = (
        ("trainers", len(trainers.FAULTS) * len(trainers.KINDS), _of_trainers(folder)),
        ("engines", len(engine_faults.FAULTS), _of_engines(folder)),
    )
    yield from HEADER
    for name, of, answers in rows:
        if answers:
            yield row(name, of, answers)
        elif name in before:
            yield f"| {' | '.join(before[name])} |"


def main(folder: Path, names: Sequence[str]) -> int:
    here = Path(__file__).parent
    scripts = [] if names else [["trainers.py", str(folder)]]
    if names != ["--table"]:
        scripts.append(["engine_faults.py", str(folder), *names])
    done = [subprocess.run([sys.executable, str(here / script), *given], check=False) for script, *given in scripts]
    page.write("named", lines(folder, page.rows("named")))
    return any(one.returncode for one in done)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2:]))
