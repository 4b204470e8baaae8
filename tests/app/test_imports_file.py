"""The section `imports`: read with file and line, followed by the service, read again when it changes, shown."""

import json
import os
import signal
import subprocess
from pathlib import Path

import pytest
from importing_files import generic_row, write_lines
from processes import eventually, service

from logprobe.app.cli import main
from logprobe.app.dashboard.pages.data_home import imports_blocks
from logprobe.app.processes import imports_part
from logprobe.collectors.errors import ConfigurationError
from logprobe.monitor import settings_file

GOOD = "imports:\n  - format: jsonl\n    path: {path}\n    run: {run}\n"
WRONG = {
    "import:\n": (1, "unknown key 'import'"),
    "imports: 3\n": (1, "must be a mapping or a list"),
    "imports:\n  - format: jsonl\n    path: /x\n    rnu: r\n": (4, "did you mean 'run'"),
    "imports:\n  - format: prime\n    path: /x\n    run: r\n": (2, "did you mean 'prime-rl'"),
    "imports:\n  - format: jsonl\n    path: /x\n    run: 7\n": (4, "imports.0.run: Input should be a valid string"),
    "imports:\n  - format: jsonl\n    path: /x\n": (2, "imports.0.run: Field required"),
    GOOD.format(path="/a", run="r") + GOOD.format(path="/b", run="r").partition("\n")[2]: (5, "already imported"),
}


@pytest.mark.parametrize("text", WRONG)
def test_mistakes_have_file_and_line(tmp_path, text):
    line, words = WRONG[text]
    (tmp_path / settings_file.FILE).write_text(text)
    with pytest.raises(ConfigurationError) as error:
        imports_part.load(tmp_path)
    assert str(error.value).startswith(f"{tmp_path / settings_file.FILE}:{line}: ")
    assert words in str(error.value)


def test_entries(tmp_path):
    text = (
        GOOD.format(path="below", run="a")
        + GOOD.format(path="~/x", run="b").partition("\n")[2]
        + '    files: "*_0.pt"\n'
    )
    (tmp_path / settings_file.FILE).write_text(text)
    first, second = imports_part.load(tmp_path)
    assert (first.path, first.run, first.files) == (tmp_path / "below", "a", None)
    assert (second.path, second.files) == (Path("~/x").expanduser(), "*_0.pt")


def processes():
    """Lines of process id and arguments."""
    return subprocess.run(
        ["ps", "-ww", "-eo", "pid,args"], check=True, capture_output=True, text=True
    ).stdout.splitlines()


def rewrite(file, text):
    """In one go: nobody finds it half written."""
    other = file.with_suffix(".new")
    other.write_text(text)
    other.replace(file)


def imports(reader):
    return {each["run"]: each for each in (reader.status()["jobs"]["imports"]["progress"] or {}).get("imports", ())}


def test_the_service_follows_what_the_file_lists(tmp_path, capsys):
    home = tmp_path / "home"
    home.mkdir()
    write_lines(tmp_path / "a" / "1.jsonl", [generic_row(1, "a")])
    write_lines(tmp_path / "b" / "1.jsonl", [generic_row(1, "b")])
    file = home / settings_file.FILE
    file.write_text(GOOD.format(path=tmp_path / "a", run="first"))
    counted = "SELECT run, count(*) AS n FROM sequences GROUP BY run ORDER BY run"
    with service(home) as reader:
        found = lambda: {row["run"]: row["n"] for row in reader.query(counted).to_pylist()}
        eventually(lambda: found() == {"first": 1}, "the first folder is followed", 120)
        rewrite(
            file,
            GOOD.format(path=tmp_path / "b", run="second")
            + GOOD.format(path=tmp_path / "a", run="first").partition("\n")[2],
        )
        eventually(lambda: found() == {"first": 1, "second": 1}, "the changed file is read again", 120)
        rewrite(file, "imports:\n  - format: nonsense\n")
        said = lambda: (reader.status()["jobs"]["imports"]["progress"] or {}).get("problem") or ""
        assert f"{file}:2: " in eventually(said, "the mistake is shown")
        with (tmp_path / "a" / "1.jsonl").open("a") as growing:  # what was there before stays in force
            growing.write(json.dumps(generic_row(2, "c")) + "\n")
        eventually(lambda: found() == {"first": 2, "second": 1}, "what the file said before stays in force", 120)
        eventually(lambda: imports(reader).get("second", {}).get("state") == "following", "a status")
        [_, table] = imports_blocks(reader.status())
        assert "first" in str(table)
        status = lambda: (main(["status", "first", "--home", str(home)]), capsys.readouterr().out)[1]
        line = f"jsonl from {tmp_path / 'a'}: following, 1 files, 2 units added"
        eventually(lambda: line in status(), "the run's status counts what was added")
        killed = [line for line in processes() if f"--run second --home {home}" in line]
        os.kill(int(killed[0].split()[0]), signal.SIGKILL)
        write_lines(tmp_path / "b" / "2.jsonl", [generic_row(2, "d")])
        eventually(lambda: found() == {"first": 2, "second": 2}, "a killed follower is started again", 120)
    follows = lambda line: f"--home {home}" in line and "--follow" in line
    eventually(lambda: not any(map(follows, processes())), "no follower outlives the service")
