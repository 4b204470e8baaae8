"""The command line: what it prints, its exit codes, what it needs."""

from __future__ import annotations

import csv
import io
import json
import os
import shlex
import signal
import subprocess
import sys
import threading
import time

import pytest
from processes import SECONDS, eventually, logprobe, record, service

from logprobe.app import cli
from logprobe.app.surface.arguments import require_run
from logprobe.app.text import tables
from logprobe.collectors.errors import ConfigurationError
from logprobe.collectors.recorder.recorder import Recorder
from logprobe.monitor.home import Home
from logprobe.monitor.metrics import KEYS


@pytest.fixture(scope="module")
def ingested(tmp_path_factory):
    """A home with an ingested run and no service."""
    home = tmp_path_factory.mktemp("ingested") / "home"
    record(home, "toy-run", steps=range(4))
    done = logprobe("up", "--once", "--home", home)
    assert "192 tokens" not in done.stdout  # 4 steps · 4 sequences · 16 tokens
    assert "256 tokens ingested; 0 files moved aside" in done.stdout
    return home


# --- Without extras ---

# Fails on any import of what only extras bring.
# Fails on any import of what only extras bring, then runs commands: for each its exit code, and what it wrote. `load` imports modules.
BARE = """
import io, json, sys
from contextlib import redirect_stderr, redirect_stdout
from importlib import import_module
missing, commands = json.loads(sys.argv[1])
class Bare:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in missing:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Bare())
from logprobe.app.cli import main
found, loaded = [], []
for words in commands:
    with redirect_stdout(io.StringIO()) as out, redirect_stderr(io.StringIO()) as err:
        code = len(list(map(import_module, words[1:]))) if words[0] == "load" else main(words)
    found.append([code, out.getvalue(), err.getvalue()])
    loaded.append(sorted(sys.modules))
json.dump([found, loaded], sys.stdout)
"""
SERVED = ["duckdb", "polars", "streamlit", "plotly", "apscheduler"]
OTHERS = ["torch", "vllm", "cryptography", "transformers", "wandb", "trackio", "tensorboard"]


# The same with the extra `serve`, and none of the others.


def bare(missing: list[str], *commands: str) -> tuple[list[tuple[int, str, str]], list[list[str]]]:
    """Code, output and errors of each command of one process that lacks these packages; modules loaded after each."""
    given = json.dumps([missing, [words.split() for words in commands]])
    command = [sys.executable, "-c", BARE, given]
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_the_extra_serve_is_enough_for_service_and_dashboard_and_a_list_of_runs_loads_no_rules() -> None:
    parts = [f"logprobe.app.{name}" for name in ("processes.service", "processes.stack", "dashboard.application")]
    found, (of_runs, _) = bare(OTHERS, "load logprobe.app.commands.runs", " ".join(("load", *parts)))
    assert [code for code, _, _ in found] == [1, 3]
    heavy = {"pydantic", "pyarrow.compute", "polars", "apscheduler", "logprobe.monitor.judging.judge"}
    assert heavy.isdisjoint(of_runs), "it made the command twice as slow"


def test_the_base_install_is_enough_or_the_missing_extra_is_named_in_one_line(tmp_path) -> None:
    home = f"--home {tmp_path}"
    asked = ("runs", "show x --metrics", "up", "demo", "preflight --model tiny --json")
    done, loaded = bare(
        SERVED + OTHERS, "--help", "doctor --json", f"doctor {home}", *(f"{words} {home}" for words in asked)
    )
    for heavy in ("numpy", "pyarrow", "duckdb", "rich", "logprobe.app.commands", "logprobe.monitor"):
        assert heavy not in loaded[0], "help loads nothing heavy"
    for code, out, err in done[:3]:
        assert (code, bool(out), err) == (0, True, "")
    assert "the recorded data cannot be read here: duckdb is not installed" in done[2][1]
    for words, (code, out, err) in zip(asked[:-1], done[3:-1], strict=True):
        assert (code, out, err.count("\n")) == (1, "", 1), words
        assert err.startswith("logprobe: ")
        assert "pip install 'logprobe[serve]'" in err
    code, out, _ = done[-1]
    document = json.loads(out)
    assert "pip install 'logprobe[serve]'" in document.pop("error")
    assert (code, document) == (2, {"result": "unknown", "checks": []}), "unknown, and not wrong"


# --- Usage and errors ---


@pytest.mark.parametrize(
    "words", ["nonsense", "show", "show x --slice rank", "compare x", "store quarantine x --retry --drop",
              "store quarantine x", "up --port 99999", "demo --speed nan"],
)  # fmt: skip
def test_wrong_usage_is_one_line_and_exit_code_2(words: str) -> None:
    done = logprobe(*words.split(), code=2)
    assert done.stderr.startswith("logprobe: ")
    assert (done.stderr.count("\n"), "--help" in done.stderr) == (1, True)


def test_a_user_without_a_home_folder_is_told_what_to_set() -> None:
    done = logprobe("runs", LOGPROBE_HOME="", XDG_DATA_HOME="relative", code=1)
    assert done.stderr == "logprobe: no data directory: this user has no home folder; set LOGPROBE_HOME\n"


def test_shared_options_stand_anywhere_and_the_home_may_come_from_the_environment(ingested, tmp_path) -> None:
    assert logprobe("--version").stdout.startswith("logprobe 0.")
    before = logprobe("--home", ingested, "--json", "runs").stdout
    assert before == logprobe("runs", "--json", "--home", ingested).stdout != ""
    assert before == logprobe("runs", "--json", LOGPROBE_HOME=str(ingested)).stdout
    (tmp_path / "logprobe").symlink_to(ingested)  # the user's own, where nothing is said
    assert before == logprobe("runs", "--json", LOGPROBE_HOME="", XDG_DATA_HOME=str(tmp_path)).stdout


def test_a_home_without_anything_says_what_to_do(home) -> None:
    done = logprobe("runs", "--home", home, code=1)
    assert "logprobe up --once --home" in done.stderr
    assert done.stderr.count("\n") == 1
    assert not home.exists()


def test_debug_adds_the_traceback(home) -> None:
    done = logprobe("--debug", "runs", "--home", home, code=1)
    assert done.stderr.startswith("logprobe: ")
    assert "Traceback (most recent call last)" in done.stderr
    assert "Traceback" not in logprobe("runs", "--home", home, code=1).stderr


def test_an_error_nobody_foresaw_is_one_line_too(monkeypatch, capsys) -> None:
    def broken(_):
        raise ZeroDivisionError("division\nby zero")

    monkeypatch.setattr("logprobe.app.commands.doctor.run", broken)
    assert cli.main(["doctor"]) == 1
    line = capsys.readouterr().err
    assert line.startswith("logprobe: unexpected ZeroDivisionError: division by zero; `logprobe --debug` shows where")
    assert line.count("\n") == 1


def test_ctrl_c_in_the_middle_of_a_query_is_no_error_message(ingested) -> None:
    endless = "SELECT sum(a.range * b.range) FROM range(1000000) a, range(1000000) b"
    here = threading.get_ident()

    def asks() -> bool:
        """Whether the main thread is in the reader's `query`: earlier, Ctrl-C would strike this test."""
        frame = sys._current_frames()[here]
        while frame and frame.f_code.co_name != "query":
            frame = frame.f_back
        return frame is not None

    def press() -> None:
        eventually(asks, "the query is under way")
        time.sleep(0.5)
        os.kill(os.getpid(), signal.SIGINT)

    presser = threading.Thread(target=press)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
    presser.start()
    try:
        done = logprobe("sql", endless, "--home", ingested, code=130)
    finally:
        presser.join()
        signal.signal(signal.SIGINT, before)
    assert (done.stdout, done.stderr) == ("", "")


# Asks for what never ends, presses Ctrl-C until it has ended, a little later each time, and says how often that went well.
IMPATIENT = """
import os, signal, sys, threading
from logprobe.monitor.reader import open_reader

def press(pause, over):
    while not over.wait(pause):
        os.kill(os.getpid(), signal.SIGINT)

def interrupt(number, frame):
    while frame:  # only what strikes the reader: outside of it this program has nothing to end
        if frame.f_code.co_name == "__del__":  # what strikes there, the interpreter drops, with a message: the next press counts
            return
        if frame.f_code.co_name == "query":
            raise KeyboardInterrupt
        frame = frame.f_back

signal.signal(signal.SIGINT, interrupt)
ended = 0
with open_reader(sys.argv[1]) as reader:
    for moment in range(12):
        over = threading.Event()
        presser = threading.Thread(target=press, args=(0.002 + moment * 2e-3, over))
        presser.start()
        try:
            reader.query("SELECT sum(a.range * b.range) FROM range(1000000) a, range(1000000) b")
        except KeyboardInterrupt:
            ended += 1
        over.set()
        presser.join()
    print(ended, reader.query("SELECT 7 AS n")["n"].to_pylist(), flush=True)
os._exit(0)  # after many interrupted statements a thread of DuckDB's own may abort the interpreter's exit
"""


def test_ctrl_c_pressed_again_while_the_query_is_being_stopped(ingested) -> None:
    words = [sys.executable, "-c", IMPATIENT, str(ingested)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=200, check=False)
    assert (done.stdout, done.stderr, done.returncode) == ("12 [7]\n", "", 0)


def test_a_closed_pipe_is_no_error_message(ingested) -> None:
    words = [
        sys.executable,
        "-m",
        "logprobe.app.cli",
        "show",
        "--metrics",
        "toy-run",
        "--json",
        "--home",
        str(ingested),
    ]
    command = f"{shlex.join(words)} | head -c 10"
    done = subprocess.run(command, shell=True, capture_output=True, text=True, timeout=SECONDS, check=False)
    assert done.stdout == '{"run": "t'
    assert done.stderr == ""


def test_closed_streams_and_an_encoding_of_few_letters_are_no_error(ingested) -> None:
    words = [sys.executable, "-m", "logprobe.app.cli", "runs", "--home", str(ingested)]
    closed = subprocess.run(f"{shlex.join(words)} <&- >&- 2>&-", shell=True, timeout=SECONDS, check=False)
    assert closed.returncode == 0
    ascii_only = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    done = subprocess.run(words, capture_output=True, timeout=SECONDS, env=ascii_only, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"toy-run" in done.stdout
    assert rb"\u2013" in done.stdout, "unknown looks unknown"


# --- metrics ---


def test_metrics_json_is_the_public_document(ingested) -> None:
    text = logprobe("show", "--metrics", "toy-run", "--json", "--home", ingested).stdout
    document = json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
    assert list(document) == ["run", "steps"]
    assert document["run"] == "toy-run"
    assert [step["step"] for step in document["steps"]] == [0, 1, 2, 3]
    for step in document["steps"]:
        assert list(step) == ["step", "tokens", "sequences", "metrics"]
        assert (step["tokens"], step["sequences"]) == (64, 4)
        assert list(step["metrics"]) == list(KEYS)
        assert 0 < step["metrics"]["backend.k3_kl"] < 1e-3
        assert step["metrics"]["reward"] == 1.5
        assert step["metrics"]["weight_lag_mean"] is None  # no engine told its version: unknown, not 0
    lines = logprobe("show", "--metrics", "toy-run", "--home", ingested, COLUMNS="80").stdout.splitlines()
    assert (lines[-1].split()[0], "–" in lines[-4], max(map(len, lines)) <= 80) == ("3", True, True)
    for bounds, steps in {"1:2": [1, 2], "2:": [2, 3], ":0": [0], "3": [3], "7:9": []}.items():
        words = ("--steps", bounds, "--metric", "reward", "--home", ingested)
        found = json.loads(logprobe("show", "--metrics", "toy-run", "--json", *words).stdout)["steps"]
        assert [(each["step"], list(each["metrics"])) for each in found] == [(step, ["reward"]) for step in steps]


def test_an_unknown_metric_or_run_is_named_with_a_remedy(ingested) -> None:
    assert (
        "there is no metric 'k3'"
        in logprobe("show", "--metrics", "toy-run", "--metric", "k3", "--home", ingested, code=1).stderr
    )
    assert "did you mean 'toy-run'?" in logprobe("show", "--metrics", "toyrun", "--home", ingested, code=1).stderr
    assert "see `logprobe runs`" in logprobe("show", "zzz", "--home", ingested, code=1).stderr


def test_the_catalog_is_listed() -> None:
    entries = json.loads(logprobe("show", "--metrics", "--json").stdout)
    assert [entry["key"] for entry in entries] == list(KEYS)
    assert all(entry["words"] and entry["formula"] and entry["grain"] for entry in entries)
    needs = {entry["key"]: entry["needs"] for entry in entries}
    assert needs["update.pg_clip_fraction"] == ["trainer_logprobs", "current_logprobs", "advantages"]
    assert needs["reward"] == ["rewards"]
    text = logprobe("show", "--metrics").stdout
    assert all(f"{key}\n" in text for key in KEYS)


# --- sql, runs, status, doctor ---


def test_sql_in_three_forms(ingested) -> None:
    query = "SELECT step, NULL AS none, 'a,\"b' AS text, {'x': 1.5} AS nested, 'nan'::DOUBLE AS odd FROM steps WHERE step < 2 ORDER BY step"
    rows = json.loads(logprobe("sql", query, "--json", "--home", ingested).stdout)
    assert rows == [{"step": n, "none": None, "text": 'a,"b', "nested": {"x": 1.5}, "odd": None} for n in (0, 1)]
    lines = list(csv.DictReader(io.StringIO(logprobe("sql", query, "--csv", "--home", ingested).stdout)))
    assert [(line["step"], line["none"], line["text"], line["nested"]) for line in lines] == [
        ("0", "", 'a,"b', '{"x": 1.5}'),
        ("1", "", 'a,"b', '{"x": 1.5}'),
    ]
    assert logprobe("sql", query, "--home", ingested).stdout.splitlines()[2].split()[:2] == ["0", "–"]


def test_the_state_of_a_run_without_a_service(ingested) -> None:
    (run,) = json.loads(logprobe("runs", "--json", "--home", ingested).stdout)
    assert (run["run"], run["state"], run["steps"], run["last_step"], run["tokens"]) == ("toy-run", "ended", 4, 3, 256)
    document = json.loads(logprobe("show", "toy-run", "--json", "--home", ingested).stdout)
    assert (document["state"], document["last_step"], document["sequences"]) == ("ended", 3, 16)
    assert document["service"] == {"running": False, "backlog": None, "jobs": {}}
    assert [collector["closed"] for collector in document["collectors"]] == [True]
    text = logprobe("show", "toy-run", "--home", ingested).stdout
    assert "ended: its collector closed" in text
    assert "no service is running" in text


def test_status_tells_a_problem_to_its_end(home) -> None:
    message = "the engine " + "really " * 20 + "stopped"
    with Recorder(home, "toy") as recorder:
        recorder.step(0, loss=1.0)
        recorder.report("engine_stopped", message, severity="warning")
    logprobe("up", "--once", "--home", home)
    assert logprobe("show", "toy", "--home", home).stdout.count("really") == 20


def test_doctor_says_what_cannot_be_measured_and_whether_an_engine_would_be_watched(ingested) -> None:
    def said(section: str, **environment: str) -> list[dict]:
        findings = json.loads(logprobe("doctor", "--json", **environment).stdout)
        return [finding for finding in findings if finding["section"] == section]

    gaps = said("runs", LOGPROBE_HOME=str(ingested))
    texts = " / ".join(gap["text"] for gap in gaps)
    assert "toy-run: all sequences with no current log-probs; unknown: all `update` and `total` metrics" in texts
    assert "toy-run: no rollout side" in texts
    assert "reward" not in texts
    assert all(gap["remedy"] for gap in gaps)
    for environment, words in (
        ({}, "LOGPROBE_HOME and LOGPROBE_RUN not set"),
        ({"LOGPROBE_HOME": "h", "LOGPROBE_RUN": "x"}, "records to h"),
        ({"VLLM_PLUGINS": "other"}, "excludes the plugin"),
    ):
        assert words in " / ".join(finding["text"] for finding in said("hooks", **environment))


# --- beside a service ---


def test_commands_go_through_a_running_service(home) -> None:
    record(home, "toy-run", steps=range(2))
    with service(home):
        report = json.loads(logprobe("up", "--once", "--json", "--home", home).stdout)
        assert report["remaining"] == 0
        assert len(json.loads(logprobe("show", "--metrics", "toy-run", "--json", "--home", home).stdout)["steps"]) == 2
        document = json.loads(logprobe("show", "toy-run", "--json", "--home", home).stdout)
        assert document["service"]["running"] is True
        assert document["service"]["backlog"]["segments"] == 0
        assert "segments (0 bytes) in the spool" in logprobe("show", "toy-run", "--home", home).stdout
        done = logprobe("sql", "SELECT * FROM nowhere", "--home", home, code=1)
        assert "nowhere" in done.stderr
        assert done.stderr.count("\n") == 1
        assert "served by process" in logprobe("doctor", "--home", home).stdout
        owner = Home(home).owner()
        assert f"is in use by process {owner.pid}" in logprobe("up", "--home", home, "--port", "0", code=1).stderr


# --- pieces ---


def test_near_matches() -> None:
    with pytest.raises(ConfigurationError, match="did you mean 'v0-reference'"):
        require_run("v0_reference", ["v0-reference", "late-growth"])
    with pytest.raises(ConfigurationError, match="did you mean 'late-growth'"):
        require_run("growth", ["v0-reference", "late-growth"])
    with pytest.raises(ConfigurationError, match="start the service to ingest"):
        require_run("x", [])


def test_a_terminal_is_not_steered_by_names() -> None:
    assert "\x1b" not in tables.fitted(["run"], [["\x1b[2Jevil\n"]])
    assert "\x1b" not in tables.paragraph("\x1b[2Jevil\n")
    assert tables.cell("x" * 100) == "x" * 59 + "…"
    assert tables.cell(float("nan")) == "–"
    assert tables.cell(0.0) == "0"
