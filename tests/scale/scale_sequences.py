"""A million sequences in one step, and thousands of weight versions in one sequence and in one run: right numbers, in bounded memory."""

import json
import resource
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from dashboard_process import dashboard
from playwright.sync_api import expect, sync_playwright

from logprobe.collectors.recorder.recorder import Recorder
from logprobe.collectors.weights import mark
from logprobe.monitor.reader import open_reader

MILLION, AT_ONCE, TOKENS = 1_000_000, 20_000, 8
VERSIONS, SPAN = 4_000, 2  # of one sequence: each of its versions sampled two tokens
SLOW = 600_000
GIB = 1 << 30


def ingest(home: Path) -> tuple[dict[str, int], float, int]:
    """`logprobe up --once` in a process of its own: its report, seconds, and the most memory of any child so far."""
    begun = time.monotonic()
    command = [sys.executable, "-m", "logprobe.app.cli", "up", "--once", "--json", "--home", str(home)]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=1800)
    most = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss << 10
    return json.loads(done.stdout), time.monotonic() - begun, most


def shown(home: Path, chromium: str, run: str, *pages: tuple[str, str]) -> str:
    """Seconds until each page is drawn, each named with what is seen then."""
    seconds = []
    with dashboard("up", "--home", str(home), "--port", "0", seconds=300) as address, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_page()
        for name, selector in pages:
            begun = time.monotonic()
            page.goto(f"{address}/?page={name}&run={run}", wait_until="commit", timeout=SLOW)
            expect(page.locator(selector).first).to_be_visible(timeout=SLOW)
            seconds.append(f"{name} {time.monotonic() - begun:.1f} s")
            assert page.locator("[data-testid=stException]").count() == 0
        browser.close()
    return ", ".join(seconds)


def test_a_million_sequences_in_one_step(tmp_path, chromium):
    home, shape = tmp_path / "home", (AT_ONCE, TOKENS)
    rng = np.random.default_rng(3)
    k3_sum, begun = 0.0, time.monotonic()
    with Recorder(home, "wide") as recorder:
        for first in range(0, MILLION, AT_ONCE):
            rollout = -rng.exponential(1.0, shape).astype(np.float32)
            trainer = np.minimum(rollout + rng.normal(0, 0.01, shape), -1e-6).astype(np.float32)
            d = trainer.astype(np.float64) - rollout.astype(np.float64)
            k3_sum += float(np.sum(np.expm1(d) - d))
            assert recorder.training(
                step=1,
                sample_ids=[str(number) for number in range(first, first + AT_ONCE)],
                token_ids=rng.integers(0, 1000, shape),
                rollout_logprobs=rollout,
                trainer_logprobs=trainer,
                mask=np.ones(shape, bool),
                rewards=np.ones(AT_ONCE, np.float32),
            )
            assert recorder.flush(300)
    recorded = time.monotonic() - begun
    report, seconds, most = ingest(home)
    with open_reader(home) as reader:
        found = reader.query("SELECT count(*) AS n, count(DISTINCT sample_id) AS ids FROM sequences").to_pylist()
        k3 = reader.query("SELECT value FROM metrics WHERE metric = 'backend.k3_kl'")["value"].to_pylist()
    assert found == [{"n": MILLION, "ids": MILLION}]
    assert k3 == pytest.approx([k3_sum / (MILLION * TOKENS)], rel=1e-9)
    assert most < 8 * GIB
    print(
        f"\n10^6 sequences in a step: recorded in {recorded:.0f} s, ingested in {seconds:.0f} s, {most >> 20} MiB; {report}"
    )
    pages = (
        ("overview", ".lp-tiles"),
        ("mismatch", ".lp-plot .trace"),
        ("tokens", ".lp-strip"),
        ("data", "[data-testid=stDataFrame]"),
    )
    print(f"pages: {shown(home, chromium, 'wide', *pages)}")


def test_thousands_of_versions_in_a_sequence_and_in_a_run(tmp_path, chromium):
    home, length = tmp_path / "home", VERSIONS * SPAN
    rng = np.random.default_rng(5)
    rollout = -rng.exponential(1.0, (1, length)).astype(np.float32)
    sides = {"sample_ids": ["long"], "token_ids": rng.integers(0, 1000, (1, length))}
    spans = [(place * SPAN, (place + 1) * SPAN, str(place)) for place in range(VERSIONS)]
    begun = time.monotonic()
    with Recorder(home, "spans") as recorder:
        for version in range(VERSIONS):
            assert mark(version, step=version, recorder=recorder, home=home, run="spans")
            if version % 100 == 0:
                assert recorder.flush(300)
        marked, newest = time.monotonic() - begun, str(VERSIONS - 1)
        assert recorder.rollout(**sides, logprobs=rollout, lengths=[length], weight_version=[spans])
        assert recorder.training(
            step=VERSIONS, **sides, trainer_logprobs=rollout, mask=np.ones((1, length), bool), weight_version=newest
        )
        assert recorder.flush(300)
    _, seconds, most = ingest(home)
    with open_reader(home) as reader:
        lags = "metric IN ('weight_lag_mean', 'weight_lag_max', 'mixed_version_frac')"
        found = reader.query(f"SELECT metric, value FROM metrics WHERE {lags}").to_pylist()
        versions = reader.query("SELECT count(DISTINCT version) AS n FROM weights")["n"][0].as_py()
    assert versions == VERSIONS
    assert {row["metric"]: row["value"] for row in found} == {
        "weight_lag_mean": pytest.approx((VERSIONS - 1) / 2),
        "weight_lag_max": VERSIONS - 1,
        "mixed_version_frac": 1.0,
    }
    print(f"\n{VERSIONS} versions: marked in {marked:.1f} s, ingested in {seconds:.1f} s, {most >> 20} MiB")
    print(f"pages: {shown(home, chromium, 'spans', ('mismatch&view=weights', '.lp-plot'), ('tokens', '.lp-strip'))}")
