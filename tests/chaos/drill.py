"""A new operator with docs/operating.md alone loses the store and rebuilds it: every number from before is there again, or unknown."""

from __future__ import annotations

import math
import re
import shlex
import time
from pathlib import Path
from typing import Any, Final

from operator_homes import is_well, remove_store, unwell
from processes import logprobe, record, service

from logprobe.monitor.reader import open_reader

PAGE: Final = Path(__file__).parents[2] / "docs" / "operating.md"
STEPS: Final = 100
LEAST: Final = 1000  # numbers that have to be known again
_NUMBERS: Final = "SELECT run, step, metric, value FROM step_metrics WHERE value IS NOT NULL"

Numbers = dict[tuple[Any, ...], float]


def drill(home: Path) -> dict[str, Any]:
    """Loses the store of a home, follows the page; → numbers before, equal, unknown and wrong, and the minutes."""
    record(home, steps=range(STEPS))
    with service(home) as reader:
        reader.ingest()
    before = _numbers(home)
    remove_store(home)
    began = time.monotonic()
    with service(home):
        assert "stop the service, `logprobe store check --repair`" in PAGE.read_text(encoding="utf-8")
        said = unwell(home)
    logprobe(*_command(), "--home", home)
    with service(home):
        well = is_well(home)
    minutes, after = (time.monotonic() - began) / 60, _numbers(home)
    equal = sum(key in after and math.isclose(value, after[key], rel_tol=1e-9) for key, value in before.items())
    return {
        "said": said, "numbers": len(before), "equal": equal, "unknown": len(before.keys() - after.keys()),
        "wrong": len(before.keys() & after.keys()) - equal + len(after.keys() - before.keys()), "well": well,
        "good": well and equal >= LEAST, "minutes": round(minutes, 2),
    }  # fmt: skip


def _command() -> list[str]:
    """What the page says to run."""
    section = PAGE.read_text(encoding="utf-8").partition("## Rebuild a lost or damaged store")[2]
    line = re.search(r"^    (logprobe \w+)", section, re.MULTILINE)
    assert line is not None
    return shlex.split(line[1])[1:]


def _numbers(home: Path) -> Numbers:
    with open_reader(home) as reader:
        rows = reader.query(_NUMBERS).to_pylist()
    return {(row["run"], row["step"], row["metric"]): row["value"] for row in rows if not math.isnan(row["value"])}
