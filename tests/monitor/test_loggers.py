"""Computed metrics in other people's dashboards: every step once, whatever was killed, read back as those packages read."""

import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from dataclasses import replace
from datetime import timedelta

import numpy as np
import pytest
from processes import end, eventually, logprobe, record
from recorded_home import ingest_recorded

from logprobe.app.processes.logger import Following
from logprobe.app.runs import runs_of
from logprobe.collectors.errors import ConfigurationError
from logprobe.monitor.exporters import loggers
from logprobe.monitor.exporters.loggers import PREFIX, Standing, TensorBoardSettings, named, open_target, push
from logprobe.monitor.home import Home
from logprobe.monitor.judgement import Judgement
from logprobe.monitor.judging.job import DiagnosisStage
from logprobe.monitor.metrics.catalog import KEYS
from logprobe.monitor.reader import open_reader
from logprobe.monitor.store.store import Store

RUN = "v1-initial"
STEPS = list(range(12))


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """A home with the first steps of a run."""
    home = tmp_path_factory.mktemp("pushing") / "home"
    ingest_recorded(home, RUN, before_step=len(STEPS))
    return home


@pytest.fixture(scope="module")
def expected(recorded):
    """What has to arrive: step → name → value."""
    with open_reader(recorded) as reader:
        rows = reader.query("SELECT step, metrics FROM steps_of(?)", [RUN]).to_pylist()
    return {row["step"]: named(dict(row["metrics"])) for row in rows}


class Memory:
    """A target that forgets nothing, and can be killed after so many steps."""

    def __init__(self, kept, dies_after=10**9):
        self.kept, self.left = kept, dies_after

    @property
    def last(self):
        return max(self.kept, default=None)

    def log(self, step, time, values):
        if not self.left:
            raise ConnectionError
        self.left -= 1
        assert step not in self.kept
        self.kept[step] = values

    def flush(self):
        pass


def test_a_target_that_dies_in_the_middle_is_filled_by_the_next(recorded, expected, monkeypatch):
    monkeypatch.setattr(loggers, "_BATCH_STEPS", 5)
    kept = {}
    with open_reader(recorded) as reader:
        assert push(reader, RUN, Memory(kept), up_to=3) == 4
        with pytest.raises(ConnectionError):
            push(reader, RUN, Memory(kept, dies_after=5))
        assert push(reader, RUN, Memory(kept)) == 3
        assert push(reader, RUN, Memory(kept)) == 0
    assert kept == expected
    assert list(kept) == STEPS


def test_what_is_unknown_is_left_out_and_never_0():
    assert named({"step": 1, "backend.k3_kl": None, "backend.kl": float("nan"), "entropy": 0.0}) == {
        "logprobe/entropy": 0.0
    }
    everything = named(dict.fromkeys(KEYS, 1.0) | {"loss": 2.0, "step": 1})
    assert len(everything) == len(KEYS)
    assert all(name.startswith("logprobe/") for name in everything)


def run_program(program, home, *arguments):
    """A program of its own that exports the run: packages of others stay out of this process."""
    command = [sys.executable, "-c", program, "export", RUN, "--home", str(home), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=180, check=False)


def event_values(folder):
    """As TensorBoard reads a folder: step → tag → values. A step that was logged twice has two."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    read = EventAccumulator(str(folder), size_guidance={"scalars": 0, "tensors": 0}).Reload()
    found = {}
    for tag in read.Tags()["scalars"]:
        for event in read.Scalars(tag):
            found.setdefault(event.step, {}).setdefault(tag, []).append(event.value)
    return found


def push_events(home, folder):
    """One process' worth of pushing; how many steps were new."""
    target = open_target(TensorBoardSettings(to="tensorboard", dir=folder), RUN, Home(home))
    with open_reader(home) as reader:
        logged = push(reader, RUN, target)
    target.close()
    return logged


def test_tensorboard_has_every_step_once_with_its_values(recorded, expected, tmp_path):
    folder = tmp_path / RUN
    folder.mkdir()
    earlier = folder / f"events.out.tfevents.{int(time.time()):010d}.zzz.9.9.logprobe"  # of the same second
    earlier.touch()
    (folder / "notes.logprobe").touch()  # somebody's, and no event file
    assert (push_events(recorded, tmp_path), push_events(recorded, tmp_path)) == (len(STEPS), 0)
    assert min(folder.iterdir()) == earlier, "what was there is read first"
    found = event_values(folder)
    assert list(found) == STEPS
    for step, values in expected.items():
        assert found[step] == {name: [float(np.float32(value))] for name, value in values.items()}


PUSHED = "import sys; from logprobe.app.cli import main; sys.exit(main(sys.argv[1:]))"
KILLED = """
import os, signal, sys
from logprobe.app.cli import main
from logprobe.monitor.exporters.loggers import _Wandb as Target
log, left = Target.log, [5]
def counted(self, *arguments):
    if not left[0]:
        self.flush()
        os.kill(os.getpid(), signal.SIGKILL)
    left[0] -= 1
    log(self, *arguments)
Target.log = counted
main(sys.argv[1:])
"""


def test_wandb_offline_in_the_files_that_it_syncs(judged, expected, tmp_path):
    """Every step once though a push was killed, and verdict, cause and link as summary, tag and alert, as W&B itself reads them."""
    arguments = ("--to", "wandb", "--project", "p", "--offline", "--dir", str(tmp_path))
    assert run_program(KILLED, judged, *arguments).returncode == -signal.SIGKILL
    done = run_program(PUSHED, judged, *arguments, "--page", "http://monitor:8501/")
    assert done.returncode == 0, done.stderr
    records = wandb_records(tmp_path)
    logged = [record.history for record in records if record.HasField("history")]
    found = [{item.nested_key[0] or item.key: json.loads(item.value_json) for item in row.item} for row in logged]
    assert [row["_step"] for row in found] == STEPS
    numbers = [{name: value for name, value in row.items() if name.startswith(PREFIX)} for row in found]
    assert numbers == [pytest.approx(expected[step]) for step in STEPS]
    summary = {
        item.key: json.loads(item.value_json) for record in records for item in record.summary.update if item.key
    }
    told = {name.removeprefix("logprobe/"): value for name, value in summary.items() if name.count("/") == 1}
    assert (told["severity"], told["verdict"]) == ("critical", "critical")
    assert told["cause"]
    assert told["cause"] in told["words"]
    assert told["link"] == f"http://monitor:8501/?run={RUN}"
    assert {tag for record in records for tag in record.run.tags} == {"logprobe:critical"}
    (alert,) = [record.alert for record in records if record.HasField("alert")]
    assert (alert.title, alert.level) == (f"{RUN}: critical", "ERROR")
    assert alert.text == f"{told['words']}\n{told['link']}"
    assert_damage_costs_what_it_hits(
        max(tmp_path.glob("wandb/offline-run-*/run-*.wandb"), key=lambda path: path.stat().st_size)
    )


def assert_damage_costs_what_it_hits(path):
    """A torn end costs one record, a flipped byte its block; another version is refused."""
    content, steps = path.read_bytes(), set(loggers._wandb_steps(path))
    assert len(steps) > 1
    for damaged, most in (
        (content[:-1], 1),
        (content[: len(content) // 2] + b"?" + content[len(content) // 2 + 1 :], len(steps) - 1),
    ):
        path.write_bytes(damaged)
        assert len(steps - set(loggers._wandb_steps(path))) <= most
    path.write_bytes(content[:5])
    assert not list(loggers._wandb_steps(path))
    path.write_bytes(content.replace(b"\x00", b"\x01", 1))
    with pytest.raises(ConfigurationError, match="unknown version of wandb"):
        list(loggers._wandb_steps(path))


PUSHED_TWICE = """
import json, sys
from logprobe.app.cli import main
assert [main(sys.argv[1:]), main(sys.argv[1:])] == [0, 0]
import trackio
print(json.dumps(trackio.SQLiteStorage.get_alerts("p"), default=str))
"""


def test_trackio_in_its_database(judged, expected, tmp_path, monkeypatch):
    """A push that goes on repeats neither steps nor the alert."""
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    arguments = ("--to", "trackio", "--project", "p", "--page", "http://monitor:8501")
    said = run_program(PUSHED_TWICE, judged, *arguments).stdout
    assert "it has them already" in said
    with sqlite3.connect(tmp_path / "p.db") as database:
        rows = database.execute("SELECT step, metrics FROM metrics ORDER BY step").fetchall()
    database.close()
    assert [step for step, _ in rows] == STEPS
    assert [json.loads(text) for _, text in rows] == [pytest.approx(expected[step]) for step in STEPS]
    (alert,) = json.loads(next(line for line in said.splitlines() if line.startswith("[{")))
    assert alert["title"].startswith(f"{RUN}: critical, ")
    assert alert["level"] == "error"
    assert alert["text"].endswith(f"\nhttp://monitor:8501/?run={RUN}")


def test_a_missing_package_and_a_missing_setting_say_what_to_do(recorded, monkeypatch):
    to = ("export", RUN, "--home", recorded, "--to")
    assert "project" in logprobe(*to, "wandb", code=1).stderr
    monkeypatch.setitem(sys.modules, "trackio", None)
    assert "pip install 'logprobe[trackio]'" in logprobe(*to, "trackio", "--project", "p", code=1).stderr


def test_the_service_s_loggers_follow_a_run_and_survive_a_kill(home, tmp_path):
    home.mkdir()
    logs = tmp_path / "logs"
    (home / "logprobe.yaml").write_text(f"loggers:\n  - {{to: tensorboard, dir: '{logs}', runs: 'go*'}}\n")
    command = [sys.executable, "-m", "logprobe.app.cli", "up", "--no-app", "--home", str(home)]
    process = subprocess.Popen(command, stderr=subprocess.PIPE)
    try:
        recorder = record(home, "going", steps=range(6), close=False)
        eventually(lambda: steps_in(logs / "going") == [0, 1, 2, 3], "all but the newest two steps")
        os.kill(logger_of(process.pid), signal.SIGKILL)
        record(home, "going", steps=range(6, 9))
        recorder.close()
        eventually(lambda: steps_in(logs / "going") == list(range(9)), "all steps, once the run has ended")
    finally:
        text = end(process)
    assert "the logger to tensorboard ended unexpectedly (killed by SIGKILL" in text
    assert not (logs / "other").exists()


def steps_in(folder):
    time.sleep(0.3)  # reading again and again takes the processor from those that write
    values = event_values(folder) if folder.is_dir() else {}
    assert {len(found) for tags in values.values() for found in tags.values()} <= {1}
    return list(values)


def logger_of(supervisor):
    import psutil

    return next(
        child.pid
        for child in psutil.Process(supervisor).children()
        if "logprobe.app.processes.logger" in child.cmdline()
    )


def test_a_wrong_file_is_refused_at_the_start(home, capsys):
    from logprobe.app.processes import logger

    home.mkdir()
    assert logger.load(Home(home)) == ()
    for text in (
        "loggers: [{to: paper}]",
        "loggers: [{to: wandb}]",
        "loggers: [{to: trackio, project: p, x: 1}]",
        "- 1",
        "{",
    ):
        (home / "logprobe.yaml").write_text(text)
        with pytest.raises(ConfigurationError, match=r"logprobe\.yaml"):
            logger.load(Home(home))
    (home / "logprobe.yaml").write_text("loggers: []")  # while it was pushing
    assert logger.main(["--home", str(home), "--number", "0"]) == 1
    assert "`loggers` has no entry 1 any more; restart `logprobe up`" in capsys.readouterr().err


@pytest.fixture(scope="module")
def judged(recorded):
    """The same home once its run was diagnosed: its log-probs are those of another distribution."""
    with Store.open(Home(recorded)) as store:
        DiagnosisStage(store).run(DiagnosisStage(store).rows())
        (row,) = store.read("diagnosis_latest", run=RUN).to_pylist()
    assert row["verdict"] == "critical"
    return recorded


def wandb_records(folder):
    from wandb.proto.wandb_internal_pb2 import Record

    files = sorted(folder.glob("wandb/offline-run-*/run-*.wandb"))
    return [Record.FromString(content) for path in files for content in loggers._wandb_records(path)]


@pytest.mark.parametrize(
    ("before", "now", "told"),
    [
        (None, "critical", True), (None, "warning", True), (None, "unknown", False), (None, "ok", False),
        ("ok", "warning", True), ("warning", "critical", True), ("critical", "critical", False),
        ("critical", "warning", False), ("warning", "unknown", False), ("something else", "critical", True),
    ],
)  # fmt: skip
def test_people_are_told_when_it_gets_worse(before, now, told):
    assert Standing(now, None, "", None, "words").alerts_after(before) is told


class Told(Memory):
    def __init__(self):
        super().__init__({})
        self.told, self.closed = [], False

    def stand(self, standing):
        self.told.append(standing)

    def close(self):
        self.closed = True


def test_a_followed_run_is_told_of_once_and_again_when_it_changes(judged):
    target = Told()
    with open_reader(judged) as reader:
        began = reader.read("app_runs").to_pylist()[0]["last_record_at"]
        following = Following(reader, lambda _: target, lambda _: True, "https://host/logprobe")
        for seconds in (0, 1):
            following.tick(began + timedelta(seconds=seconds))
        assert [each.severity for each in target.told] == ["critical"]
        assert target.told[0].link == f"https://host/logprobe/?run={RUN}"
        assert target.closed  # it has ended, and all of it is judged
        (run,) = runs_of(reader.read("app_runs"), began)
    following._targets[RUN] = target
    for cause in (run.judgement.cause, run.judgement.cause, "staleness", "staleness"):
        following._say(replace(run, judgement=replace(run.judgement, cause=cause)))
    following._say(replace(run, judgement=Judgement()))  # not diagnosed yet: nothing to say
    assert [each.cause for each in target.told][2:] == ["staleness"]
