"""A home of 10,000 runs: start, first page, list of runs, a diagnosis, deletion, retention and check by real processes; seconds are printed."""

import json
import shutil
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import TypeVar

import copied_runs
import psutil
from dashboard_process import dashboard
from operator_homes import health, is_well
from playwright.sync_api import sync_playwright
from processes import eventually, logprobe, record

from logprobe.collectors.spool.segments import run_dir
from logprobe.monitor.home import Home
from logprobe.monitor.judging.job import DiagnosisStage
from logprobe.monitor.reader import FlightReader, connect
from logprobe.monitor.service.turns import Turns
from logprobe.monitor.store.retention import Retention, RetentionPolicy
from logprobe.monitor.store.store import Store

RUNS, STEPS, KEPT = 10_000, 3, 20  # KEPT: recorded; the others are their rows and raw files again, each an hour older
LONG, REST = 1800.0, 60.0
ROWS = "SELECT count(DISTINCT run) AS runs, count(*) AS rows FROM step_summaries"
LEDGER = """
    INSERT INTO raw_files BY NAME
    SELECT f.* REPLACE (
        c.run AS run, replace(path, '/kept-00/', '/' || c.run || '/') AS path, created_at - c.number * INTERVAL 1 HOUR AS created_at
    )
    FROM raw_files AS f, (SELECT format('run-{:05d}', range) AS run, range AS number FROM range($copies)) AS c WHERE f.run = 'kept-00'
"""
SEGMENTS = """
    UPDATE segments AS s SET raw_file = replace(f.path, '/kept-00/', '/' || s.run || '/')
    FROM raw_files AS f WHERE f.run = 'kept-00' AND f.kind = s.kind AND starts_with(s.run, 'run-')
"""
T = TypeVar("T")


def test_ten_thousand_runs_in_a_home(tmp_path: Path, chromium: str) -> None:
    home, said = tmp_path / "home", {}
    for number in range(KEPT):
        record(home, f"kept-{number:02d}", steps=range(STEPS))
    logprobe("up", "--once", "--home", home)
    copy(Home(home))
    disk = sum(path.stat().st_size for path in home.rglob("*") if path.is_file())
    begun = time.monotonic()
    with dashboard("up", "--home", str(home), "--port", "0", seconds=LONG) as address:
        said["up answers"] = time.monotonic() - begun
        said["all runs' page"], _ = timed(lambda: seen(chromium, f"{address}/?page=runs", "[data-testid=stDataFrame]"))
        said["a run's page"], _ = timed(lambda: seen(chromium, f"{address}/?run=run-{RUNS // 2:05d}", ".lp-tiles"))
        said["/healthz is well after"], _ = timed(lambda: eventually(lambda: is_well(home), "/healthz is well", LONG))
        said["/healthz"], (status, _) = timed(lambda: health(home))
        assert status == 200
        said["logprobe runs"], listed = timed(lambda: logprobe("runs", "--home", home).stdout)
        assert "kept-00" in listed
        with connect(Home(home).path) as reader:
            assert counted(reader) == (RUNS, RUNS * STEPS)
            said["a new run is judged after"], _ = timed(lambda: judged(reader, home))
            said["logprobe store delete"], _ = timed(
                lambda: logprobe("store", "delete", f"run-{RUNS // 2:05d}", "--yes", "--force", "--home", home)
            )
            assert counted(reader) == (RUNS, RUNS * STEPS - STEPS + 1)
            said["check"], document = timed(
                lambda: json.loads(logprobe("store", "check", "--json", "--home", home).stdout)
            )
            assert document["problems"] == []
            assert document["files"] >= RUNS
            process = psutil.Process(int(reader.status()["pid"]))
            before, began = process.cpu_times(), time.monotonic()
            time.sleep(REST)
            after, rest = process.cpu_times(), time.monotonic() - began
            cores = (after.user + after.system - before.user - before.system) / rest
            memory = process.memory_info().rss >> 20
            assert is_well(home)
    with Store.open(Home(home)) as store:
        retention = Retention(store, RetentionPolicy(max_age=timedelta(hours=RUNS // 2)))
        said["retention, nothing to do"], _ = timed(lambda: Retention(store).run_once())
        said["retention of half"], report = timed(retention.run_once)
        assert RUNS // 2 - KEPT - 1 <= report.removed_files <= RUNS // 2
        assert report.missing_files == 0
        with store.transaction() as cursor:
            cursor.execute("DELETE FROM diagnoses WHERE hash(run) % 50 = 0")
        turns, due = Turns(DiagnosisStage(store)), 0
        begun = time.monotonic()
        while done := turns.run_once()["runs"]:
            due += int(str(done))
        said[f"diagnosis of {due} runs"] = time.monotonic() - begun
        said["a look for runs to diagnose"], _ = timed(turns.run_once)
    shutil.rmtree(home)
    words = ", ".join(f"{name} {seconds:.1f} s" for name, seconds in said.items())
    print(f"\n{RUNS:,} runs: {words}; at rest {cores:.2f} cores; {memory} MiB of memory, {disk >> 20} MiB on the disk")


def copy(home: Home) -> None:
    """Makes the other runs: rows, and raw files that share their bytes."""
    with Store.open(home) as store:
        while Turns(DiagnosisStage(store)).run_once()["runs"]:
            pass
        copied_runs.as_other_runs(store, "kept-00", "run-{:05d}", RUNS - KEPT)
        (original,) = archived(home, "kept-00").iterdir()
        for number in range(RUNS - KEPT):
            folder = archived(home, f"run-{number:05d}")
            folder.mkdir(parents=True)
            (folder / original.name).hardlink_to(original)
        with store.transaction() as cursor:
            cursor.execute(LEDGER, {"copies": RUNS - KEPT})
            cursor.execute(SEGMENTS)


def archived(home: Home, run: str) -> Path:
    """Folder of a run's raw tokens."""
    return home.raw / run_dir(home.path, run).name / "training"


def timed(work: Callable[[], T]) -> tuple[float, T]:
    begun = time.monotonic()
    done = work()
    return time.monotonic() - begun, done


def seen(chromium: str, address: str, selector: str) -> None:
    """A browser that was never here draws it, without a traceback."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_page()
        page.goto(address, wait_until="commit", timeout=LONG * 1000)
        page.wait_for_selector(selector, timeout=LONG * 1000)
        assert page.locator("[data-testid=stException]").count() == 0
        browser.close()


def counted(reader: FlightReader) -> tuple[int, int]:
    (row,) = reader.query(ROWS).to_pylist()
    return row["runs"], row["rows"]


def judged(reader: FlightReader, home: Path) -> None:
    record(home, "new", steps=range(1))
    sql = "SELECT count(*) AS n FROM diagnoses WHERE run = 'new'"
    eventually(lambda: reader.query(sql)["n"].to_pylist() == [1], "the new run is judged", LONG)
