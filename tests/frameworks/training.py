"""What the frameworks' cases share: a program that trains, and the comparison of its log with logprobe's numbers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from marked_page import write_between

from logprobe.app.cli import main
from logprobe.monitor import queries
from logprobe.monitor.reader import open_reader

TOLERANCE = 1e-6
_BEGIN, _END = "<!-- agreement: made by the test -->", "<!-- end of agreement -->"
_ENVIRONMENT = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "OMP_NUM_THREADS": "1",
}


class Trained(dict[str, Any]):
    """What the program wrote, with the home it recorded to, the run's name and what it said."""

    def logprobe(self, capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
        """Output of a command on the run's home."""
        capsys.readouterr()
        code = main([*arguments, "--home", str(self["home"])])
        assert code == 0 or (code == 2 and arguments[0] == "show"), code  # 2: the run is critical
        return capsys.readouterr().out

    def steps(self, capsys: pytest.CaptureFixture[str]) -> dict[int, dict[str, Any]]:
        """Step → what `logprobe show --metrics` says of it."""
        self.logprobe(capsys, "up", "--once")
        found = json.loads(self.logprobe(capsys, "show", "--metrics", self["run"], "--json"))["steps"]
        return {
            step["step"]: {**step["metrics"], "sequences": step["sequences"], "tokens": step["tokens"]}
            for step in found
        }

    def peer(self, capsys: pytest.CaptureFixture[str], name: str) -> dict[int, dict[str, Any]]:
        """Step → what `logprobe show --metrics --as` says another framework logs; after `steps`."""
        found = json.loads(self.logprobe(capsys, "show", "--metrics", self["run"], "--as", name, "--json"))["steps"]
        return {step["step"]: step["metrics"] for step in found}

    def diagnosed(self, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
        return json.loads(self.logprobe(capsys, "show", self["run"], "--json"))

    def causes(self, capsys: pytest.CaptureFixture[str]) -> list[str]:
        """Causes that the diagnosis names, the first one first; after `steps`."""
        return [finding["cause"] for finding in self.diagnosed(capsys)["findings"]]


def train(program: Path, folder: Path, model: Path, name: str, **options: Any) -> Trained:
    """Trains in processes of their own, as `start` says."""
    done = start(program, folder, model, name, **options)
    assert done.returncode == 0, done.stderr[-4000:]
    result = json.loads((folder / name / "result.json").read_text())
    return Trained({**result, "home": folder / "home", "run": name, "said": done.stderr})


def start(
    program: Path,
    folder: Path,
    model: Path,
    name: str,
    *,
    ranks: int = 1,
    launcher: Sequence[str] = (),
    run: str | None = None,
    plugin: bool = True,
    **options: Any,
) -> subprocess.CompletedProcess[str]:
    """`ranks` processes, or those that `launcher` starts (arguments of Python), whatever becomes of them. `run`: default: `name`."""
    (folder / name).mkdir()
    document = json.dumps({"model": str(model), "out": str(folder / name), **options})
    environment = {**os.environ, **_ENVIRONMENT, "LOGPROBE_RUN": run or name}
    if plugin:
        environment["LOGPROBE_HOME"] = str(folder / "home")
    if ranks > 1:
        launcher = ["-m", "torch.distributed.run", f"--nproc-per-node={ranks}"]
    command = [sys.executable, *launcher, str(program), document]
    return subprocess.run(command, env=environment, check=False, capture_output=True, text=True, timeout=3600)


class Agreement:
    """The largest difference of every number that a framework logs and logprobe computes, case by case."""

    def __init__(self) -> None:
        self._found: dict[tuple[str, str], dict[str, float]] = {}

    def check(
        self,
        case: str,
        ours: Mapping[int, Mapping[str, Any]],
        history: list[dict[str, Any]],
        names: Mapping[str, str],
        *,
        tolerance: float = TOLERANCE,
    ) -> int:
        """Checks every number of `names` (from theirs to ours) that the framework logged; → how many."""
        compared = 0
        for logged in history:
            for theirs, mine in names.items():
                if theirs in logged and logged["step"] in ours:
                    value = ours[logged["step"]][mine]
                    expected = pytest.approx(logged[theirs], rel=tolerance, abs=tolerance)
                    assert value == expected, (logged["step"], theirs)
                    cell = self._found.setdefault((theirs, mine), {})
                    cell[case] = max(cell.get(case, 0.0), abs(value - logged[theirs]))
                    compared += 1
        return compared

    def table(self) -> str:
        """Markdown: a row per number, with the largest absolute difference of all steps over its cases."""
        rows = [
            [f"`{theirs}`", f"`{mine}`", "; ".join(_cells(cells))]
            for (theirs, mine), cells in sorted(self._found.items())
        ]
        lines = [["logged as", "metric", "largest difference"], ["---"] * 3, *rows]
        return "".join(f"| {' | '.join(line)} |\n" for line in lines)

    def write(self, page: Path) -> None:
        """Replaces the table between the markers of a page."""
        write_between(page, _BEGIN, _END, [self.table().rstrip("\n")])


def check_checkpoints(
    seen: Trained, capsys: pytest.CaptureFixture[str], folder: Path, saved: Sequence[int], left: Sequence[int]
) -> None:
    """The document of an incident names, for an onset at each step, the last checkpoint before it that is in `folder`."""
    assert sorted(path.name for path in folder.glob("checkpoint-*")) == [f"checkpoint-{step}" for step in left]
    seen.steps(capsys)
    with open_reader(seen["home"]) as reader:
        for onset in range(1, saved[-1] + 2):
            (row,) = queries.incident_checkpoints(reader, run=seen["run"], before=onset).to_pylist()
            good = max((step for step in left if step < onset), default=None)
            where = None if good is None else str(folder / f"checkpoint-{good}")
            gone = max((step for step in saved if step < onset and step not in left), default=None)
            assert row == {"checkpoints": len(saved), "step": good, "folder": where, "deleted": gone}, onset


def _cells(cells: Mapping[str, float]) -> Iterator[str]:
    """The largest difference of the cases within the tolerance, with their number, and each one beyond it by name."""
    within = [difference for difference in cells.values() if difference <= TOLERANCE]
    if within:
        largest = max(within)
        yield f"{_short(largest)} in {len(within)} {'case' if len(within) == 1 else 'cases'}"
    for case, difference in sorted(cells.items()):
        if difference > TOLERANCE:
            yield f"{_short(difference)} in {case}"


def _short(difference: float) -> str:
    return "0" if difference == 0 else f"{difference:.0e}"


def agree(
    ours: Mapping[int, Mapping[str, Any]],
    history: list[dict[str, Any]],
    names: Mapping[str, str],
    tolerance: float = TOLERANCE,
) -> int:
    """As `Agreement.check`, for a case that is in no table."""
    return Agreement().check("", ours, history, names, tolerance=tolerance)
