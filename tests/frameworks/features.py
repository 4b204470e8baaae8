"""Which of a framework's data a test has seen recorded: counted in its home when it passed, and written down by `LOGPROBE_WRITE_TABLES=1`.

`make campaign NAME=features` makes the table in tests/RESULTS.md of what was written down. A session in which every test of a file ran and passed
replaces what an earlier one has said of the framework; any other only adds to it.
"""

from __future__ import annotations

import datetime as dt
import importlib.metadata
import json
import sys
import tempfile
from collections import defaultdict
from contextlib import suppress
from pathlib import Path
from shutil import copytree
from typing import Any, Final

import pytest
from marked_page import write_between

from logprobe.monitor.home import Home
from logprobe.monitor.reader import open_reader

FILE: Final = Path(__file__).with_name("features.json")
PAGE: Final = Path(__file__).parents[1] / "RESULTS.md"
_BEGIN, _END = "<!-- features: made by the tests -->", "<!-- end of features -->"
FEATURES: Final = {  # as SQL of the run's sequences
    "r": "bool_or(s.rollout_source IN ('received', 'joined'))",
    "t": "bool_or(b.n > 0)",
    "c": "bool_or(u.n > 0)",
    "entropy": "bool_or(s.entropy_n > 0)",
    "rewards": "bool_or(s.reward IS NOT NULL)",
    "versions": "bool_or(s.weight_version IS NOT NULL AND (s.rollout_versions IS NOT NULL OR len(r.spans) > 0))",
    "groups": "count(DISTINCT s.group_id) > 1",
    "correction": "EXISTS (FROM step_records WHERE correction IS NOT NULL)",
    "resume": "EXISTS (FROM older_sequences)",
    "ranks": "count(DISTINCT s.rank) > 1",
}
_RECORDED: Final = f"""
SELECT {", ".join(f"{sql} AS {name}" for name, sql in FEATURES.items())}
FROM training_sequences AS s
LEFT JOIN statistics AS b ON b.segment_id = s.segment_id AND b.row = s.row AND b.pair = 'backend'
LEFT JOIN statistics AS u ON u.segment_id = s.segment_id AND u.row = s.row AND u.pair = 'update'
LEFT JOIN rollout_sequences AS r ON r.segment_id = s.rollout_segment AND r.row = s.rollout_row
"""
# What a test shows: a training with the framework; its own functions on its own data; hooks on data laid out as its own.
HOW: Final = ("layout", "functions", "training")
# Name, distribution or version, and how, by the file of the tests, or by file and host of the conformance suite.
FRAMEWORKS: Final = {
    "trl_cases": ("TRL", "trl", "training"),
    "deepspeed_cases": ("TRL on DeepSpeed", "deepspeed", "training"),
    "ms_swift_cases": ("ms-swift", "ms-swift", "training"),
    "verl_cases": ("verl", "verl", "functions"),
    "pipelinerl_cases": ("PipelineRL", "58d39345", "functions"),
    "test_hosts[Trl]": ("TRL", "1.16.0", "layout"),
    "test_hosts[TrlAsync]": ("TRL", "1.16.0", "layout"),
    "test_trl": ("TRL", "1.16.0", "layout"),
    "test_hosts[MsSwift]": ("ms-swift", "4.6.0", "layout"),
    "test_hosts[VerlV0]": ("verl", "0.9.1", "layout"),
    "test_hosts[VerlV1]": ("verl", "0.9.1", "layout"),
    "test_verl": ("verl", "0.9.1", "layout"),
    "test_hosts[Slime]": ("slime, miles", "624b824a8", "layout"),
    "test_hosts[Miles]": ("slime, miles", "624b824a8", "layout"),
    "test_slime": ("slime, miles", "624b824a8", "layout"),
    "test_hosts[Vime]": ("vime", "0.2.4", "layout"),
    "test_hosts[SkyRl]": ("SkyRL", "0.3.0", "layout"),
    "test_skyrl": ("SkyRL", "0.3.0", "layout"),
    "test_hosts[PipelineRl]": ("PipelineRL", "58d39345", "layout"),
    "test_pipelinerl": ("PipelineRL", "58d39345", "layout"),
    "test_hosts[OpenRlhf]": ("OpenRLHF", "0.11.2", "layout"),
    "test_hosts[Areal]": ("AReaL", "1.0.4", "layout"),
    "test_hosts[Roll]": ("ROLL", "8eb27cc2", "layout"),
    "test_hosts[Rllm]": ("rllm", "9beb6e0f", "layout"),
}


class Seen:
    """What the tests of a session have shown, by their key in `FRAMEWORKS`."""

    def __init__(self) -> None:
        self._passed: defaultdict[str, set[str]] = defaultdict(set)
        self._incomplete: set[str] = set()

    def ended(self, nodeid: str, folder: Path, *, passed: bool) -> None:
        """A test ended that recorded to a home in `folder`."""
        file, _, test = nodeid.partition("::")
        host = test.partition("[")[2].rstrip("]").partition("-")[0]
        names = (f"{Path(file).stem}[{host}]", Path(file).stem)
        key = next((name for name in names if name in FRAMEWORKS), None)
        if key is None:
            return
        if not passed:
            self._incomplete.add(key)
        elif (folder / "home").is_dir():
            self._passed[key] |= recorded(folder / "home")

    def write(self, *, whole: bool) -> None:
        """Into `FILE`. `whole`: no test was left out."""
        known = json.loads(FILE.read_text()) if FILE.exists() else {}
        for key, features in self._passed.items():
            name, version, how = FRAMEWORKS[key]
            with suppress(importlib.metadata.PackageNotFoundError):
                version = importlib.metadata.version(version)
            entry = {"how": how, "version": version, "date": dt.datetime.now(dt.UTC).date().isoformat()}
            of_framework = known.setdefault(name, {})
            if whole and key not in self._incomplete:
                of_framework = {feature: old for feature, old in of_framework.items() if old["how"] != how}
            for feature in features:
                if HOW.index(how) >= HOW.index(of_framework.get(feature, entry)["how"]):
                    of_framework[feature] = entry
            known[name] = of_framework
        if self._passed:
            FILE.write_text(json.dumps(known, indent=1, sort_keys=True) + "\n")


def is_whole(config: pytest.Config, exitstatus: int) -> bool:
    """Whether every test of the files that were given has run: none was chosen by its name, and nobody interrupted them."""
    chosen = config.option.keyword or any("::" in str(argument) for argument in config.args)
    return not chosen and exitstatus in {pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED}


def recorded(home: Path) -> set[str]:
    """Features that are in a home, as ingest reads it; the home stays as it is."""
    from recorded_home import ingest_recorded

    with tempfile.TemporaryDirectory() as folder:
        copy = copytree(home, Path(folder, "home"))
        ingest_recorded(copy)
        with open_reader(Home(copy)) as reader:
            (row,) = reader.query(_RECORDED).to_pylist()
    return {name for name, value in row.items() if value}


def table(known: dict[str, dict[str, Any]]) -> list[str]:
    """Markdown: a row per framework."""
    signs = {"training": "●", "functions": "◐", "layout": "○"}
    lines = [f"| framework | {' | '.join(FEATURES)} | version, date |", f"|{'---|' * (len(FEATURES) + 2)}"]
    for name, features in sorted(known.items(), key=lambda item: (-_rank(item[1]), item[0].casefold())):
        cells = [signs[features[each]["how"]] if each in features else "" for each in FEATURES]
        dates = sorted({f"{entry['version']}, {entry['date']}" for entry in features.values()})
        lines.append(f"| {name} | {' | '.join(cells)} | {'; '.join(dates)} |")
    return lines


def _rank(features: dict[str, Any]) -> int:
    return max((HOW.index(entry["how"]) for entry in features.values()), default=-1)


def main() -> int:
    """Writes the table."""
    write_between(PAGE, _BEGIN, _END, table(json.loads(FILE.read_text())))
    return 0


if __name__ == "__main__":
    sys.exit(main())
