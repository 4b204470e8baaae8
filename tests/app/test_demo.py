"""The demo: what a replay records equals what was recorded, and the whole stack starts and ends cleanly."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from exporting import export_run
from processes import connected, eventually

from logprobe.app.demo.show import demo_home, find_runs, first_live_step
from logprobe.app.replay import Replay
from logprobe.collectors.errors import ConfigurationError, HomeBusyError
from logprobe.collectors.recorder.recorder import Recorder
from logprobe.monitor.home import Home
from logprobe.monitor.recorded import RecordedRun

STEPS = 36


def record_both_sides(home: Path, run: str) -> None:
    """A run with everything a replay has to carry: both sides, gaps in them, weights, configurations, problems."""
    rng = np.random.default_rng(3)
    trainer, engine = Recorder(home, run, rank=0), Recorder(home, run, component="vllm_plugin", replica="r0")
    config = engine.config({"model": "toy", "dtype": "float32"}, kind="engine_config")
    engine.report("self_test", "recording this engine", details={"ok": True})
    for step in range(STEPS):
        names = [f"{step}-{i}" for i in range(3)]
        tokens = [rng.integers(0, 50, length) for length in (5, 3, 7)]
        rollout = [-rng.exponential(1.0, len(ids)).astype(np.float32) for ids in tokens]
        missing = [*rollout[:2], [None, *rollout[2].tolist()[1:]]]
        engine.rollout(
            sample_ids=names,
            token_ids=tokens,
            logprobs=missing,
            weight_version=[[(0, len(ids), str(step))] for ids in tokens[:2]] + [None],
            cached_prefix_tokens=[0, 4, 8],
            prompt_lengths=[4, 4, 9],
            finish_reasons=["stop", "length", "stop"],
            sampling={"temperature": 0.7, "top_p": 1.0},
            engine_config_id=config,
        )
        trainer.training(
            step=step,
            sample_ids=names,
            token_ids=tokens,
            trainer_logprobs=[np.minimum(r + 0.01, 0).astype(np.float32) for r in rollout],
            mask=[np.arange(len(ids)) > 0 for ids in tokens],
            entropy=[np.full(len(ids), 0.5, np.float32) for ids in tokens],
            rewards=[0.0, 1.0, 0.5],
            weight_version=step,
            prompt_ids=["p", "p", "q"],
            tags={"environment": "toy"},
        )
        trainer.step(step, loss=0.25, correction={"kind": "TIS", "cap": 2.0})
        trainer.weights(step + 1, step=step, applied_at=time.time(), cache_cleared=step % 2 == 0)
    for recorder in (trainer, engine):
        assert recorder.flush(120)
        recorder.close()


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    """A folder with one exported run."""
    folder = tmp_path_factory.mktemp("data")
    record_both_sides(folder / "home", "toy")
    export_run(folder / "home", "toy", folder / "runs" / "toy")
    return folder / "runs"


def test_a_replay_records_what_was_recorded(data, tmp_path) -> None:
    original = RecordedRun(data / "toy")
    assert Replay(original, tmp_path / "home").play(steps_per_second=1e6, stop=threading.Event()) == STEPS
    again = export_run(tmp_path / "home", "toy", tmp_path / "again")
    assert again.steps == original.steps
    for kind, key in (
        ("training", "sample_id"),
        ("rollout", "sample_id"),
        ("step", "step"),
        ("weights", "version"),
        ("config", "fingerprint"),
    ):
        left, right = (run.table(kind).sort_by(key).drop_columns("time") for run in (original, again))
        if kind == "weights":  # their times are of today
            left, right = (table.drop_columns(["applied_at"]) for table in (left, right))
        assert left.equals(right), kind
    events = again.table("health")
    assert pc.sum(pc.equal(events["event"], "self_test")).as_py() == 1
    assert pc.sum(pc.equal(events["event"], "closed")).as_py() == 2


class Waited(threading.Event):
    """Notes how long it was to be waited for, and lets nobody wait."""

    def __init__(self) -> None:
        super().__init__()
        self.pauses: list[float] = []

    def wait(self, timeout: float | None = None) -> bool:
        self.pauses.append(timeout or 0.0)
        return False


def test_a_replay_is_of_today_and_keeps_its_pace(data, tmp_path) -> None:
    begun, stop = time.time(), Waited()
    Replay(RecordedRun(data / "toy"), tmp_path / "home").play(steps_per_second=0.01, stop=stop)
    assert len(stop.pauses) == STEPS
    # A pause ends where its step does by the clock: the time that recording took is no part of it.
    assert all(
        100 * (step + 1) - (time.time() - begun) <= pause <= 100 * (step + 1) for step, pause in enumerate(stop.pauses)
    )
    again = export_run(tmp_path / "home", "toy", tmp_path / "again")
    times = [t.timestamp() for t in again.table("training")["time"].to_pylist()]
    assert min(times) >= begun - 1
    applied = [t.timestamp() for t in again.table("weights")["applied_at"].to_pylist()]
    assert min(applied) >= begun - 60


def test_a_replay_stops_when_told(data, tmp_path) -> None:
    class Told(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            self.set()
            return super().wait(timeout)

    assert Replay(RecordedRun(data / "toy"), tmp_path / "home").play(steps_per_second=0.01, stop=Told()) == 1


def test_runs_are_found_by_name(data, tmp_path) -> None:
    assert [recorded.run for recorded in find_runs(data, None)] == ["toy"]
    with pytest.raises(ConfigurationError, match="no recorded run 'other'; there are toy"):
        find_runs(data, ["other"])
    with pytest.raises(ConfigurationError, match="--data DIR"):
        find_runs(tmp_path, None)


def test_a_demo_empties_only_a_home_of_its_own(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    with demo_home(None) as home:
        assert home.path == tmp_path / "data" / "logprobe-demo"
    assert home.path.exists(), "what was shown can be asked for afterwards"
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "thesis.txt").write_text("years of work")
    with pytest.raises(ConfigurationError, match="not empty and not a demo home"), demo_home(str(mine)):
        pass
    assert (mine / "thesis.txt").exists()
    demo = tmp_path / "demo"
    with demo_home(str(demo)) as home:
        (home.path / "old.duckdb").touch()
    assert demo.exists()
    with demo_home(str(demo)) as home:
        assert not (home.path / "old.duckdb").exists()
        with home.lock(), pytest.raises(HomeBusyError), demo_home(str(demo)):
            pass


def test_the_demo_shows_a_growing_run_and_ends_cleanly_on_ctrl_c(data, tmp_path) -> None:
    """At a pace at which the run still grows (for three minutes) however late the service starts, and so is stopped in its middle."""
    home = tmp_path / "home"
    command = [
        sys.executable,
        "-m",
        "logprobe.app.cli",
        "demo",
        "--data",
        str(data),
        "--home",
        str(home),
        "--port",
        "0",
        "--speed",
        "0.2",
    ]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True)
    lines: list[str] = []
    listener = threading.Thread(target=lambda: lines.extend(process.stderr))
    listener.start()
    try:
        address = eventually(
            lambda: next((line.split()[3] for line in lines if "dashboard at" in line), None), "an address"
        )
        with urllib.request.urlopen(address, timeout=90) as page:
            assert page.status == 200
        with connected(home) as reader:

            def steps() -> int:
                return reader.query("SELECT count(*) AS n FROM step_summaries WHERE run = 'toy'")["n"][0].as_py()

            first = eventually(steps, "a first step")
            eventually(lambda: steps() > first, "the run grows")
        children = psutil.Process(process.pid).children(recursive=True)
        assert len(children) >= 2
    finally:
        process.send_signal(signal.SIGINT)
        code = process.wait(90)
        listener.join(90)
        process.stderr.close()
    assert code == 0
    eventually(lambda: not any(child.is_running() for child in children), "none of its processes is left")
    assert Home(home).owner() is None
    text = "".join(lines)
    assert "Traceback" not in text
    assert text.splitlines()[-1] == f"logprobe: stopped; its home stays: logprobe show toy --home {home}"


def test_the_demo_ignores_the_home_of_real_runs(data, tmp_path) -> None:
    """LOGPROBE_HOME names the user's runs; without --home the demo is somewhere else."""
    from processes import logprobe

    real = tmp_path / "real"
    done = logprobe("demo", "--data", str(tmp_path), code=1, LOGPROBE_HOME=str(real), XDG_DATA_HOME=str(tmp_path))
    assert "no recorded runs" in done.stderr
    help_text = json.dumps(logprobe("demo", "--help").stdout)
    assert "STEPS_PER_S" in help_text
    assert not real.exists()


def test_what_was_laid_down_and_what_is_played_after_it_are_the_whole_run(data, tmp_path) -> None:
    original = RecordedRun(data / "toy")
    ended = datetime.now(UTC) - timedelta(hours=1)
    replay = Replay(original, tmp_path / "home")
    assert replay.lay_down(5, ended) < ended
    assert replay.play(steps_per_second=1e6, stop=threading.Event(), start=5) == STEPS - 5
    again = export_run(tmp_path / "home", "toy", tmp_path / "again")
    for kind, key in (("training", "sample_id"), ("rollout", "sample_id"), ("step", "step"), ("weights", "version")):
        left, right = (run.table(kind).sort_by(key).drop_columns("time") for run in (original, again))
        if kind == "weights":
            left, right = (table.drop_columns(["applied_at"]) for table in (left, right))
        assert left.equals(right), kind
    health = again.table("health").append_column("writer", again.writers("health"))
    closed = health.filter(pc.equal(health["event"], "closed"))
    assert sorted(closed["writer"].to_pylist()) == sorted(
        again.writers("training").unique().to_pylist() + again.writers("rollout").unique().to_pylist()
    )
    accounts = [json.loads(details)["written"]["sequences"] for details in closed["details"].to_pylist()]
    assert sum(accounts) == again.table("training").num_rows + again.table("rollout").num_rows
    laid_down = again.table("step").filter(pc.less(again.table("step")["step"], 5))
    assert pc.max(laid_down["time"]).as_py() <= ended


def test_updates_of_a_replay_keep_their_order_and_their_duration(tmp_path) -> None:
    """However much faster it goes than the recording: an update that was made before another one stays the older one."""
    began = time.time() - 600
    with Recorder(tmp_path / "home", "toy") as recorder:
        for step in range(STEPS):
            applied = began + step
            recorder.weights(step, step=step, started_at=applied - 0.25, applied_at=applied)
            recorder.step(step, loss=0.0)
    recorded = export_run(tmp_path / "home", "toy", tmp_path / "runs" / "toy")
    slow = slowed(recorded, tmp_path / "runs" / "slow", seconds=1.0)
    Replay(slow, tmp_path / "again").play(steps_per_second=50, stop=threading.Event())
    rows = export_run(tmp_path / "again", "toy", tmp_path / "exported").table("weights").to_pylist()
    moments = [row["applied_at"] for row in rows]
    assert [row["version"] for row in rows] == [str(step) for step in range(STEPS)]
    assert moments == sorted(set(moments))
    assert {round((row["applied_at"] - row["started_at"]).total_seconds(), 3) for row in rows} == {0.25}


def slowed(recorded: RecordedRun, folder: Path, seconds: float) -> RecordedRun:
    """The recorded run with `seconds` between the records of its steps."""
    shutil.copytree(recorded.folder, folder)
    for kind in ("step", "weights"):
        table = pq.read_table(folder / f"{kind}.parquet")
        first = table["time"][0].as_py()
        times = [first + timedelta(seconds=seconds * step) for step in table["step"].to_pylist()]
        if kind == "weights":
            for name, before in (("started_at", 0.45), ("applied_at", 0.2)):
                column = pa.array([at - timedelta(seconds=before) for at in times], table[name].type)
                table = table.set_column(table.column_names.index(name), name, column)
        column = pa.array(times, table["time"].type)
        pq.write_table(table.set_column(table.column_names.index("time"), "time", column), folder / f"{kind}.parquet")
    return RecordedRun(folder)


def test_the_live_run_starts_shortly_before_its_trouble(data, repository) -> None:
    assert first_live_step(RecordedRun(data / "toy")) == 0
    (live,) = find_runs(repository / "sample_data", ["late-growth-bf16"])
    assert live.steps[first_live_step(live)] == live.manifest["onset_step"] - 20
