"""Runs the engine tests on several releases of vLLM, each in an environment of its own, and writes the table of tests/RESULTS.md.

    python tests/engines/run.py [0.28.0 0.30.0 0.32.0] [-- pytest arguments]

Reports stay in `.artifacts/engines`, so releases can run one at a time. Without pytest arguments a release starts afresh; with them,
what ran earlier still counts, the newest outcome of each test. The page is rewritten once every test of the table has an outcome on
every release. Exit code 1 when a test failed.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree as ET

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "tests" / "support"))

from marked_page import write_between  # noqa: E402 - beside the tests

PAGE = ROOT / "tests" / "RESULTS.md"
REPORTS = ROOT / ".artifacts" / "engines"
BEGIN, END = "<!-- engines: tests/engines/run.py -->", "<!-- end of engines -->"
FILES = ("tests/e2e/test_vllm_engine.py", "tests/e2e/test_attribution.py")
RELEASES = ("0.28.0", "0.30.0", "0.32.0")
# What the table promises → the tests that show it, by a part of their names.
ROWS = {
    "tokens, log-probs and ends as the caller got them": (
        "told",
        "stop_string",
        "speculative",
    ),
    "requests named over HTTP": ("over_http",),
    "callers see no difference; inert without a home": ("callers_see", "injection", "errors_in_capture"),
    "an unknown vLLM or scheduler is left alone, and reported": (
        "unknown_vllm",
        "without_a_run_name",
    ),
    "weight versions of marks, updates in flight and late marks": (
        "mark_cuts",
        "spans_of_an_update",
        "observes_updates",
    ),
    "unknown after a load without a mark": ("without_a_mark_are_unknown", "nobody_marked"),
    "several requests, one sequence": ("trajectories",),
    "data-parallel replicas": ("replicas",),
    "sudden end of an engine": ("killed",),
    "fingerprints: the trainer's weights, or not": ("trainers_weights",),
    "random schedule, also of LoRA adapters: versions right or unknown": ("right_or_unknown",),
    "effective configuration": ("documents",),
}


@dataclass(frozen=True)
class Outcome:
    """Of one test: "passed", "failed", or why it was skipped."""

    test: str
    result: str


def run(release: str, options: list[str]) -> None:
    """Runs the tests on one release, and keeps the report."""
    if not options:
        for path in reports(release):
            path.unlink()
    REPORTS.mkdir(parents=True, exist_ok=True)
    python = ROOT / f".venv-engine-{release}" / "bin" / "python"
    report = REPORTS / f"{release}-{time.time_ns()}.xml"
    command = [
        str(python),
        "-m",
        "pytest",
        *FILES,
        "-q",
        "-m",
        "",
        "-p",
        "no:cacheprovider",
        f"--junitxml={report}",
        *options,
    ]
    subprocess.run(command, cwd=ROOT, check=False)


def reports(release: str) -> list[Path]:
    """The reports there are of a release, oldest first."""
    return sorted(REPORTS.glob(f"{release}-*.xml"), key=lambda path: path.name)


def known(release: str) -> list[Outcome]:
    """The newest outcome of each test on a release."""
    newest = {each.test: each for path in reports(release) for each in outcomes(path.read_bytes())}
    return list(newest.values())


def outcomes(report: bytes) -> list[Outcome]:
    """What a report in JUnit's format says; our own pytest wrote it."""
    cases = ET.fromstring(report).iter("testcase")
    return [Outcome(name, _result(case)) for case in cases if (name := case.get("name", ""))]


def _result(case: ET.Element) -> str:
    if case.find("failure") is not None or case.find("error") is not None:
        return "failed"
    skipped = case.find("skipped")
    return "passed" if skipped is None else skipped.get("message", "skipped")


def cell(found: list[Outcome], names: tuple[str, ...]) -> str:
    """What a row says of one release; "–" where some of its tests have not run."""
    results = [each.result for each in found if any(name in each.test for name in names)]
    if not shown(found, names):
        return "–"
    ran = [result for result in results if result in {"passed", "failed"}]
    good = ran.count("passed")
    if good < len(ran):
        return f"**no** ({good} of {len(ran)})"
    lacking = [result for result in dict.fromkeys(results) if result not in {"passed", "failed"}]
    return "; ".join([*(["yes"] if ran else []), *lacking])


def shown(found: list[Outcome], names: tuple[str, ...]) -> bool:
    """Whether each of a row's tests has an outcome."""
    return all(any(name in each.test for each in found) for name in names)


def table(found: dict[str, list[Outcome]]) -> list[str]:
    """Rows of the page."""
    head = ["| | " + " | ".join(f"vLLM {release}" for release in found) + " |", "|---" * (len(found) + 1) + "|"]
    return head + [
        f"| {label} | " + " | ".join(cell(each, names) for each in found.values()) + " |"
        for label, names in ROWS.items()
    ]


def write(lines: list[str]) -> None:
    """Rewrites the page."""
    write_between(PAGE, BEGIN, END, lines)


def main() -> int:
    """Runs, prints the table, and rewrites the page when it is complete."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("releases", nargs="*", default=list(RELEASES), metavar="RELEASE")
    ours, options = _split(sys.argv[1:])
    chosen = parser.parse_args(ours).releases
    for release in chosen:
        run(release, options)
    found = {release: known(release) for release in RELEASES}
    lines = table(found)
    print("\n".join(lines))
    if all(shown(each, names) for each in found.values() for names in ROWS.values()):
        write(lines)
    return int(any(each.result == "failed" for release in chosen for each in found[release]))


def _split(arguments: list[str]) -> tuple[list[str], list[str]]:
    """Our arguments, and pytest's."""
    at = arguments.index("--") if "--" in arguments else len(arguments)
    return arguments[:at], arguments[at + 1 :]


if __name__ == "__main__":
    sys.exit(main())
