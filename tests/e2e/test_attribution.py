"""Whose weights sampled a token, on real engines: a version is right, or it is unknown."""

from __future__ import annotations

import json
import math
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from engine_process import EngineHost, ingested, rollouts, run_scenario, spooled
from processes import JUDGED, logprobe

from logprobe.app.text.gaps import SILENT_SECONDS, sudden_end
from logprobe.monitor.home import Home
from logprobe.monitor.judging.gather import gather
from logprobe.monitor.judging.judge import judge
from logprobe.monitor.judging.judgement import Confidence
from logprobe.monitor.store.store import Store

pytestmark = [pytest.mark.engine, pytest.mark.timeout(900)]  # several processes that import torch, beside others
RUN = "a run"


SCRIPT = "attribution_scenarios"


def place_of(home: Path) -> dict[str, str]:
    return {"LOGPROBE_HOME": str(home), "LOGPROBE_RUN": RUN}


def apart(scenario: str, models: Path, home: Path) -> Any:
    """What a scenario returned whose engines are processes of their own."""
    return run_scenario(scenario, models, script=SCRIPT, VLLM_ENABLE_V1_MULTIPROCESSING="1", **place_of(home))


def versions(home: Path) -> dict[str, list[str | None]]:
    """Sample id → the versions of its spans."""
    return {row["sample_id"]: [span["version"] for span in row["spans"]] for row in rollouts(home, RUN)}


# --- Loads nobody marked ---


def test_after_a_load_nobody_marked_versions_are_unknown(engines: EngineHost, models: Path, home: Path) -> None:
    harmless = {"LOGPROBE_RECORD": "harmless=get_model:get_nothing"}
    told = engines.run("loads", models, script=SCRIPT, **place_of(home), **harmless)
    assert told["flushed"]
    seen = versions(home)
    wrong = {}
    for name, (version, before, after) in told["found"].items():
        expected = [[version], [version if name in told["harmless"] else None]]
        if [seen[before], seen[after]] != expected:
            wrong[name] = [seen[before], seen[after], "expected", *expected]
    assert wrong == {}
    with ingested(home) as store:
        problems = store.read("cli_problems", run=RUN).to_pylist()
    unknown = [problem["message"] for problem in problems if problem["event"] == "weights_unknown"]
    assert any(words.startswith("change_worker ") and "LOGPROBE_RECORD=harmless=" in words for words in unknown)


# --- Trajectories of several requests ---


def test_trajectories_are_measured_as_what_their_requests_sampled(
    engines: EngineHost, models: Path, home: Path
) -> None:
    """Three trained sequences of two or three requests each, with an update between them, through the whole pipeline."""
    told = engines.run("trajectories", models, script=SCRIPT, **place_of(home))
    assert told["flushed"]
    assert logprobe("up", "--once", "--home", home).returncode == 0
    [step] = json.loads(logprobe("show", "--metrics", RUN, "--json", "--home", home).stdout)["steps"]
    metrics = step["metrics"]
    assert metrics["backend.coverage"] == 1
    assert metrics["length_mismatch_frac"] == metrics["token_mismatch_frac"] == metrics["unknown_version_frac"] == 0
    assert metrics["mixed_version_frac"] == 1
    assert math.isclose(metrics["weight_lag_mean"], told["lag"], rel_tol=1e-12)
    assert math.isclose(metrics["backend.k3_kl"], told["k3"], rel_tol=1e-6)
    assert told["k3"] > 1e-6, "the update must be visible"
    query = "SELECT sample_id, joined_by, spans, parts FROM sequences"
    rows = {row["sample_id"]: row for row in json.loads(logprobe("sql", query, "--json", "--home", home).stdout)}
    assert {name: row["joined_by"] for name, row in rows.items()} == dict.fromkeys(told["parts"], "parts")
    for name, expected in told["parts"].items():
        found = [[part["sample_id"], part["end"] - part["start"]] for part in rows[name]["parts"]]
        assert found == expected
        assert {part["replica"] for part in rows[name]["parts"]} == {None}, "an engine alone is no replica"
    cached = [part["cached_prefix_tokens"] for part in rows["turns-0/0…turns-2/0"]["parts"]]
    assert cached[0] == 0 < cached[2], "the last turn must take the first ones from the cache"
    diagnosis = logprobe("show", RUN, "--json", "--home", home, code=JUDGED).stdout
    assert "missing_logprobs" not in json.dumps(json.loads(diagnosis)["findings"])


# --- An engine that is killed ---


@pytest.mark.long
def test_what_a_killed_engine_cost_was_said_before(models: Path, home: Path) -> None:
    told = apart("killed", models, home)
    lost = told["answered"] - len(spooled(home, RUN, "rollout"))
    assert logprobe("up", "--once", "--home", home).returncode == 0
    with Store.open(Home(home), read_only=True) as store:
        later = datetime.now(UTC) + timedelta(minutes=1)
        [row] = store.read("cli_ends", run=RUN, now=later, silent=SILENT_SECONDS).to_pylist()
        assert store.read("cli_ends", run=RUN, now=row["last_sign"], silent=SILENT_SECONDS).num_rows == 0
    # 32 requests were open; a bound that grew between two looks is set a fifth too large.
    assert lost <= row["sequences"] <= 32 + 32 // 5
    assert lost * 200 <= row["tokens"]
    assert "ended without closing" in sudden_end(row)


# --- All of it, at random ---


@pytest.mark.parametrize("tokens", [9_000, pytest.param(26_000, marks=pytest.mark.long)])
def test_versions_are_right_or_unknown(engines: EngineHost, models: Path, home: Path, tokens: int) -> None:
    told = engines.run("schedule", models, tokens, script="schedule_scenario", **place_of(home))
    counts = told["wrong"]
    assert told["flushed"]
    assert counts["wrong"] == 0
    sampled = sum(counts[name] for name in ("right", "wrong", "unknown"))
    assert sampled >= 0.75 * tokens, "aborted requests sample less than they may"
    assert counts["decisive"] > 0.9 * counts["right"] > 0.3 * tokens, "checkpoints must be told apart"
    assert counts["unknown"] > 100
    assert counts["of adapters"] > 0.02 * tokens
    assert {"load marked", "load unmarked", "load labelled", "interrupt", "load while running"} <= told["events"].keys()
    assert {"pause keep", "pause abort"} & told["events"].keys()
    assert {"load by protocol", "load by protocol, no version"} & told["events"].keys() or not told["has_versions"]
    assert {"swap marked", "swap unmarked"} <= told["events"].keys()


# --- Replicas in processes of their own ---


@pytest.mark.long
def test_data_parallel_replicas_have_names_and_marks_of_their_own(models: Path, home: Path) -> None:
    apart("replicas", models, home)
    rows = {row["sample_id"]: row for row in spooled(home, RUN, "rollout")}
    assert {name: row["replica"] for name, row in rows.items()} == {"first/0": "dp0", "second/0": "dp1"}
    assert versions(home) == {"first/0": ["0"], "second/0": ["1"]}
    assert logprobe("up", "--once", "--home", home).returncode == 0
    report = logprobe("doctor", "--home", home).stdout
    assert "1 weight marks for replica 'dp7' match no engine; the run has dp0, dp1" in report
    assert "dp7" in logprobe("show", RUN, "--home", home, code=JUDGED).stdout


# --- Fingerprints of weights ---


def test_an_engine_is_checked_to_have_the_trainers_weights(engines: EngineHost, models: Path, home: Path) -> None:
    told = engines.run("fingerprints", models, script=SCRIPT, **place_of(home))
    assert told["flushed"] == [True, True]
    assert not list((home / "readings").rglob("*.jsonl")), "an engine that ended leaves no files of its own"
    assert logprobe("up", "--once", "--home", home).returncode == 0
    with Store.open(Home(home), read_only=True) as store:
        readings = gather(store, RUN).readings
    engine = {row.version: row.tensors for row in readings.rows if row.source == "worker" and row.worker is None}
    whole = [(row.version, row.fingerprint) for row in readings.rows if row.worker == "checksums"]
    if told["checksums"]:  # before weights are overwritten nobody knows for how long they have been those of 2
        assert [version for version, _ in whole] == ["0", "1", None]
        assert whole[0][1] != whole[1][1] == whole[2][1], "vLLM's own checksums: nothing was loaded for 2"
    trainer = {row.version: row.tensors for row in readings.rows if row.source == "trainer"}
    assert len(engine["0"]) == told["tensors"], "every tensor of the checkpoint, fused ones apart"
    assert {name: trainer["0"][name] for name in engine["0"]} == engine["0"]
    assert {name: trainer["1"][name] for name in engine["1"]} == engine["1"]
    found = readings.mismatch
    assert found is not None
    assert (found.version, found.held, found.compared) == ("2", "1", told["tensors"])
    assert readings.unannounced == 1
    [finding] = json.loads(logprobe("show", RUN, "--json", "--home", home, code=2).stdout)["findings"][:1]
    assert (finding["cause"], finding["confidence"]) == ("missed_weight_sync", 0.99)
    assert "the weights changed although no load" in logprobe("show", RUN, "--home", home, code=2).stdout


# --- Updates below the engine's precision ---


@pytest.mark.parametrize(
    ("engine_low", "missed_since", "named"),
    [
        (0, 99, "updates_below_precision"),
        pytest.param(0, 12, "missed_weight_sync", marks=pytest.mark.long),
        pytest.param(1, 99, None, marks=pytest.mark.long),
    ],
    ids=["rounded on the way", "missed", "engine in bfloat16"],
)
def test_updates_that_rounding_loses_are_not_missed_ones(
    engines: EngineHost, models: Path, home: Path, engine_low: int, missed_since: int, named: str | None
) -> None:
    told = engines.run("rounded", models, engine_low, missed_since, script=SCRIPT, **place_of(home))
    assert told["flushed"]
    assert logprobe("up", "--once", "--home", home).returncode == 0
    with Store.open(Home(home), read_only=True) as store:
        frame = gather(store, RUN)
    rounding = frame.weights.rounding("bfloat16")
    assert rounding is not None
    assert rounding.exact[0] == 1.0 > 0.5 > rounding.exact[1]
    assert 0.02 < rounding.crossing < 0.3
    assert frame.weights_dtype == "bfloat16"
    [*found] = [(f.cause, f.confidence) for f in judge(frame).findings if f.named and f.cause != "low_precision"]
    print(rounding, frame.first.k3, frame.now.k3, found)
    assert frame.now.k3 > 0
    if named is None:
        assert not {"missed_weight_sync", "partial_weight_sync"} & {cause for cause, _ in found}
    else:
        sure = Confidence.CERTAIN if named == "missed_weight_sync" else Confidence.INFERRED
        assert found == [(named, sure)]
