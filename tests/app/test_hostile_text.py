"""Recorded names and texts reach neither a terminal's controls nor a spreadsheet's formulas; JSON is exact."""

import csv
import io
import json
import logging
import re
import shutil

import pytest
from hypothesis import given
from hypothesis import strategies as st
from importing_files import generic_row, write_lines

from logprobe.app.cli import main
from logprobe.app.text import tables
from logprobe.collectors.log_lines import log_to_stderr
from logprobe.collectors.plain_text import harmless, steerless
from logprobe.collectors.recorder.recorder import Recorder
from logprobe.monitor.exporters.table_files import _csv_table
from logprobe.monitor.plain_text import csv_cell

RUN = '=HYPERLINK("http://x")\x1b]0;owned\x07\u2028\u200f\nforged: <!channel><script>alert(1)</script>'
METRIC = "@SUM(1)\x1b[2J\x9b1A\u202eevil"
TAG = "+cmd|' /C calc'!A0"
STEERING = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")
CELLS = {
    "=1+1": "'=1+1",
    "@SUM(1)": "'@SUM(1)",
    "-cmd": "'-cmd",
    "+1+1": "'+1+1",
    "  =x": "'  =x",
    "\u00a0=x": "'\u00a0=x",
    "\uff1dx": "'\uff1dx",
    "\tx": "'\tx",
    "\r=x": "'\ufffd=x",
    "\n": "'\n",
    "-1.5": "-1.5",
    "+2e-3": "+2e-3",
    "-.5": "-.5",
    "-1.5.2": "'-1.5.2",
    "a=b": "a=b",
    "a\x1b[2Jb": "a\ufffd[2Jb",
    "a\x9bb\u202ec": "a\ufffdb\ufffdc",
    "a\u2028b\u200fc\u061cd": "a\ufffdb\ufffdc\ufffdd",
    "": "",
    "ok": "ok",
}


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    folder, source = tmp_path_factory.mktemp("h") / "home", tmp_path_factory.mktemp("s")
    write_lines(source / "a.jsonl", [{**generic_row(1, "=1+1"), "tags": {"dataset": TAG}}])
    assert main(["import", str(source), "--run", RUN, "--home", str(folder)]) == 0
    with Recorder(folder, RUN) as recorder:
        assert recorder.step(1, {METRIC: -1.5})
    assert main(["up", "--once", "--home", str(folder)]) == 0
    return folder


COMMANDS = [
    ["runs"],
    ["runs", "--json"],
    ["show", RUN],
    ["show", RUN, "--json"],
    ["show", "--metrics", RUN, "--slice", "dataset"],
    ["alerts", "list"],
    ["alerts", "list", "--json"],
    ["correct", RUN],
    ["correct", RUN, "\x1b[2J\nforged"],
    ["sql", "SELECT * FROM scalars"],
    ["sql", "SELECT * FROM scalars", "--json"],
    ["sql", "SELECT * FROM scalars", "--csv"],
    ["sql", "SELECT * FROM no_such\x1b[2Jtable"],
    ["show", "no such \x1b[2J run\nforged"],
    ["show", "bytes \udcff\nforged"],
    ["show", "long " * 2000 + "\nforged"],
    ["show", "--tokens", RUN, "--steps", "1"],
    ["show", "--metrics", RUN, "--metric", "\x1b[2J\nforged"],
    ["compare", RUN, "--baseline", "no such \x1b[2J run\nforged"],
    ["doctor"],
    ["store", "quarantine"],
    ["store", "quarantine", "\x1b[2J\nforged", "--drop"],
    ["show", RUN, "--html", "\x1b[2J\nforged/page.html"],
    ["compare", RUN, "--recipe"],
    ["export", RUN, "--to", "\x1b[2J\nforged.csv"],
    ["export", RUN, "--to", "tensorboard", "--dir", "\x1b[2J\nforged"],
    ["alerts", "silence", "run=*", "--for", "1h", "--reason", "\x1b[2J\nforged"],
    ["alerts", "ack", "\x1b[2J\nforged", "--reason", "\x1b[2J\nforged"],
    ["alerts", "accept", RUN, "\x1b[2J\nforged", "--reason", "\x1b[2J\nforged"],
    ["show", RUN, "--\x1b[2J\nforged"],
    ["import", "no such \x1b[2J file\nforged", "--run", RUN],
    ["import", __file__, "--run", RUN],
    ["import", __file__, "--run", "\0" + RUN],
    ["import", __file__, "--run", "long" * 3000],
    ["store", "delete", RUN, "--yes"],
    ["store", "delete"],
    ["\x1b[2J\nforged"],
]


def test_no_command_steers_the_terminal(home, capsys, tmp_path, monkeypatch):
    home = shutil.copytree(home, tmp_path / "home")  # one of them deletes the run
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LOGNAME", "\x1b[2J\nforged")
    bad = {}
    for command in COMMANDS:
        main([*command, "--home", str(home)])
        said = capsys.readouterr()
        text = said.out + said.err
        forged = "--csv" not in command and re.search(r"^\s*forged", text, re.MULTILINE)
        text.encode()  # no lone surrogate, which a real stream cannot write
        if not text or STEERING.search(text) or forged or "unexpected" in text:
            bad[repr(command)] = text
    assert "\n".join(f"{command}: {text!r}" for command, text in bad.items()) == ""


def test_json_is_exact(home, capsys):
    main(["sql", "SELECT run, name, value FROM scalars", "--json", "--home", str(home)])
    assert json.loads(capsys.readouterr().out) == [{"run": RUN, "name": METRIC, "value": -1.5}]
    main(["runs", "--json", "--home", str(home)])
    assert json.loads(capsys.readouterr().out)[0]["run"] == RUN


def _cells(text):
    return list(csv.reader(io.StringIO(text, newline="")))


def test_csv_of_a_query_runs_nothing(home, capsys):
    sql = "SELECT run, name, value, '-2.5' AS text, value * 2 AS \"=twice\" FROM scalars"
    main(["sql", sql, "--csv", "--home", str(home)])
    header, cells = _cells(capsys.readouterr().out)
    assert header == ["run", "name", "value", "text", "'=twice"]
    assert cells == [csv_cell(RUN), csv_cell(METRIC), "-1.5", "-2.5", "-3.0"]
    assert [cell[0] for cell in cells[:2]] == ["'", "'"]


def test_an_exported_csv_runs_nothing(home, tmp_path):
    files = {what: tmp_path / f"{what}.csv" for what in ("metrics", "tokens")}
    for what, file in files.items():
        assert main(["export", RUN, "--to", str(file), "--what", what, "--home", str(home)]) == 0
    metrics, tokens = (file.read_text() for file in files.values())
    assert not STEERING.search(metrics + tokens)
    assert METRIC not in metrics
    for text in (metrics, tokens):
        cells = [cell for line in _cells(text) for cell in line]
        assert not [cell for cell in cells if re.match(r"[=+@]|-\D", cell)]
    assert "'=1+1" in tokens


@given(
    st.text(st.one_of(st.characters(), st.sampled_from("\x00\x1b\x9b\n\r\t\u061c\u200f\u2028\u202e\u2069\ud800\udfff")))
)
def test_any_text_is_one_line_that_steers_nothing_and_json_is_exact(text):
    for shown in (harmless(text), steerless(text), csv_cell(text)):
        assert not STEERING.search(shown)
        shown.encode()
    assert len(harmless(text)) == len(text)
    assert len(harmless(text).splitlines()) <= 1
    assert "\t" not in harmless(text)
    assert harmless(harmless(text)) == harmless(text)
    document = tables.dump({text: text})
    assert not STEERING.search(document)
    assert json.loads(document) == {text: text}
    document.encode()


def test_one_rule_for_cells_in_python_and_arrow():
    import pyarrow as pa

    assert {text: csv_cell(text) for text in CELLS} == CELLS
    table = _csv_table(pa.table({"=a": list(CELLS), "n": [-1.5] * len(CELLS), "null": [None] * len(CELLS)}))
    assert table.column_names == ["'=a", "n", "null"]
    assert table["'=a"].to_pylist() == list(CELLS.values())
    assert set(table["n"].to_pylist()) == {-1.5}


def test_a_log_line_is_one_line(capfd):
    root = logging.getLogger()
    kept, level = root.handlers[:], root.level
    root.handlers[:] = []
    try:
        log_to_stderr()
        logging.getLogger("logprobe.test").error("run %s", "\x1b[2Jx\n2026-01-01 forged line")
    finally:
        root.handlers[:] = kept
        root.setLevel(level)
    said = capfd.readouterr().err
    assert said.count("\n") == 1
    assert not STEERING.search(said)
