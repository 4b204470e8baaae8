"""The surface of `logprobe`: which commands there are, that each runs on a stored home, and what refuses to run."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from processes import logprobe, record

from logprobe.app.surface.commands import SECTIONS
from logprobe.app.surface.declared import leaves

LEAVES = dict(leaves(SECTIONS))
# Each command on a home with the run `toy`: words, exit code. Those that wait for a Ctrl-C, a trainer, an engine or a bucket have
# tests of their own, which the second table names.
RUNS = {
    "up --once": 0,
    "doctor": 0,
    "runs": 0,
    "show toy": 0,
    "show toy --tokens": 0,
    "show toy --metrics": 0,
    "show toy --html report.html": 0,
    "compare toy --baseline toy": 0,
    "compare toy --recipe": 2,
    "sql 'SELECT 1'": 0,
    "export toy --to toy.csv": 0,
    "import toy.logprobe": 0,
    "alerts list": 0,
    "alerts ack toy": 1,
    "alerts silence run=toy --reason test": 0,
    "alerts accept toy low_precision --reason b --up-to 1": 0,
    "alerts try toy": 0,
    "alerts ping nowhere": 1,
    "correct toy": 0,
    "correct toy off": 0,
    "store check": 0,
    "store copy copy": 0,
    "store quarantine": 0,
    "store delete toy --yes": 0,
}
ELSEWHERE = {
    "preflight": "tests/e2e/test_preflight.py",
    "run": "tests/app/test_run.py",
    "demo": "tests/app/test_demo.py",
    "bisect": "tests/e2e/test_score.py",
    "ship": "tests/shipping/test_bucket.py",
}


def test_every_command_is_run_somewhere(repository: Path) -> None:
    run = {name for words in RUNS for name in LEAVES if tuple(shlex.split(words))[: len(name)] == name}
    assert {*run, *((name,) for name in ELSEWHERE)} == set(LEAVES)
    assert all((repository / file).exists() for file in ELSEWHERE.values())


def test_the_surface_stays_small() -> None:
    assert sum(map(len, SECTIONS.values())) == 16
    assert len(LEAVES) <= 28


def test_every_command_has_its_function(repository: Path) -> None:
    modules = {leaf.does.partition(":")[0] for leaf in LEAVES.values()}
    assert modules == {file.stem for file in (repository / "app" / "commands").glob("[!_]*.py")}


def test_each_command_runs_on_a_stored_home(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record(home, steps=range(3))
    logprobe("up", "--once", "--home", home)
    monkeypatch.chdir(tmp_path)
    logprobe("export", "toy", "--to", "toy.logprobe", "--home", home)
    for words, code in RUNS.items():
        done = logprobe(*shlex.split(words), "--home", home, code=code)
        assert "unexpected" not in done.stderr, words


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("bisect r --only-score --knobs dtype --minutes 3", "--only-score: no setting is changed; leave out --knobs, --minutes"),
        ("bisect r --exact", "--exact: pass --only-score, too"),
        ("bisect --sample a.jsonl --at 3", "--at: pass a RUN; a sample file has no steps"),
        ("bisect --only-score", "pass a RUN or --sample FILE"),
        ("show r --slice rank", "--slice: pass --metrics, too"),
        ("show r --html a --tokens", "--tokens, --metrics and --html exclude one another; pass one of them"),
        ("show r --tokens --pair reference", "Invalid value for '--pair': 'reference' is not one of 'backend', 'update', 'total'"),
        ("show r --pair total", "--pair: pass --tokens, too"),
        ("show r --tokens --steps 3:", "--tokens: name one step, as in --steps 12"),
        ("compare r s --recipe a.yaml", "--recipe: name one run, without --metric"),
        ("export r --to wandb --overwrite", "--to wandb: leave out --overwrite"),
        ("export r --to r.csv --project p", "--to r.csv: leave out --project"),
        ("correct r on --preset tis", "--preset only previews; to switch on a correction, name it in the settings (docs/correction.md)"),
        ("stor", "'stor' does not exist; did you mean 'store'?"),
        ("alerts lst", "'lst' does not exist; did you mean 'list'?"),
        ("doctor more", "Got unexpected extra argument (more)"),
    ],
)  # fmt: skip
def test_what_does_not_go_together_is_said_in_one_line(words: str, said: str, home: Path) -> None:
    done = logprobe(*shlex.split(words), "--home", home, code=2)
    assert done.stderr.startswith(f"logprobe: {said}; see: logprobe")
    assert done.stderr.count("\n") == 1


def completed(words: str, home: Path) -> set[str]:
    """What bash is offered when Tab is pressed after these words."""
    parts = words.split(" ")
    asked = {"_LOGPROBE_COMPLETE": "bash_complete", "COMP_WORDS": words, "COMP_CWORD": str(len(parts) - 1)}
    program = "import sys; from logprobe.app.cli import main; sys.exit(main())"
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, **asked, "LOGPROBE_HOME": str(home)},
        capture_output=True,
        text=True,
        check=True,
    )
    return {line.partition(",")[2] for line in done.stdout.splitlines()}


def test_commands_options_choices_and_runs_are_completed(home: Path) -> None:
    record(home, "my-run", steps=range(1))
    logprobe("up", "--once", "--home", home)
    assert completed("logprobe pre", home) == {"preflight"}
    assert completed("logprobe preflight --trai", home) == {"--trainer", "--trainer-args"}
    assert completed("logprobe correct my-run a", home) == {"armed"}
    assert completed("logprobe show my", home) == {"my-run"}
