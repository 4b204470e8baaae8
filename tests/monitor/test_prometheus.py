"""``/metrics``: what a real OpenMetrics parser reads from it, bounded, and shown to nobody without the token elsewhere."""

from __future__ import annotations

import threading
from datetime import UTC, datetime
from http.client import HTTPConnection

import pyarrow as pa
import pytest
from importing_files import MASK, ROLLOUT, TOKENS, TRAINER, k3
from node_notes import note_node
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from logprobe.collectors.errors import StoreError
from logprobe.collectors.spool.schema import SCHEMAS
from logprobe.collectors.spool.segments import SpoolWriter
from logprobe.monitor.service.healthz import HealthServer
from logprobe.monitor.service.jobs import Job
from logprobe.monitor.service.pipeline import Pipeline
from logprobe.monitor.service.scrape import CONTENT_TYPE, MOST_RUNS, VERDICTS, Family, exposition, render, states
from logprobe.monitor.shipped.nodes import InFolder, Nodes

ODD = 'a "quoted"\\ run\nof two lines é'


def write(home, run, kind, **row):
    table = pa.Table.from_pylist([{"time": datetime.now(UTC), **row}], schema=SCHEMAS[kind])
    SpoolWriter(home, run, f"{kind}-writer").write(kind, table)


def record(home, run, *, step=1, closed=False):
    lists = {"token_ids": TOKENS, "mask": [bool(flag) for flag in MASK]}
    logprobs = {"rollout_logprobs": ROLLOUT, "trainer_logprobs": TRAINER}
    write(home, run, "training", step=step, sample_id="s", **lists, **logprobs)
    if closed:
        table = pa.Table.from_pylist([{"event": "closed", "component": "recorder"}], schema=SCHEMAS["health"])
        SpoolWriter(home, run, "training-writer", after=1).write("health", table)


def scraped(store, jobs=()):
    families = text_string_to_metric_families(exposition(store, jobs))
    return {family.name: family for family in families}


def values(family):
    return {tuple(sample.labels.values()): sample.value for sample in family.samples}


def digest(store):
    pipeline = Pipeline(store, threading.Event())
    pipeline.ingest(lambda _: None)
    pipeline.diagnose()


def test_the_newest_step_losses_verdict_jobs_and_nodes_of_a_live_run(store):
    record(store.home.path, ODD, step=7)
    lost = {"event": "queue_full", "severity": "warning", "count": 1, "sequences": 3, "tokens": 40}
    write(store.home.path, ODD, "health", component="recorder", **lost)
    digest(store)
    record(store.home.path, ODD, step=8)  # waits in the spool
    for node, segments in (("a", 0), ("b", 3)):
        queue = {"segments": segments, "bytes": 10 * segments, "oldest_seconds": 100.0 if segments else None}
        note_node(store.home, node, {ODD: queue})
    Nodes(store, InFolder(store.home)).once()

    def fail():
        raise StoreError("always")

    job = Job("join", 1.0, fail)
    job.run()
    found = scraped(store, [job])
    assert values(found["logprobe_k3_kl"])["backend", ODD] == pytest.approx(k3(), rel=1e-5)
    assert ("total", ODD) not in values(found["logprobe_k3_kl"])  # not measured: no sample, never 0
    assert values(found["logprobe_step"]) == {(ODD,): 7}
    assert values(found["logprobe_lost_tokens"]) == {(ODD,): 40}
    assert sum(values(found["logprobe_verdict"]).values()) == 1
    assert {sample.labels["logprobe_verdict"] for sample in found["logprobe_verdict"].samples} == set(VERDICTS)
    assert values(found["logprobe_spool_segments"]) == {(): 1}
    assert found["logprobe_ingest_lag_seconds"].unit == "seconds"
    assert values(found["logprobe_job_failures"]) == {("join",): 1}
    assert values(found["logprobe_alerts_firing"])[ODD, "critical"] == 0
    assert values(found["logprobe_nodes"]) == {(ODD,): 2}
    assert values(found["logprobe_node_segments"]) == {(ODD,): 3}
    assert 100 <= values(found["logprobe_node_behind_seconds"])[(ODD,)] < 400


def test_only_live_runs_and_only_so_many_the_worst_first_however_old(store):
    for number in range(MOST_RUNS + 3):
        record(store.home.path, f"run-{number:02}")
    record(store.home.path, "over", closed=True)
    digest(store)
    with store.transaction() as cursor:
        for run, verdict in (("run-00", "growing"), ("run-01", "critical")):
            cursor.execute(
                "INSERT OR REPLACE INTO diagnoses (run, step, revision, verdict, layer, causes, document, diagnosed_at)"
                " VALUES (?, 1, currval('revision'), ?, 'none', [], '{}', ?)",
                [run, verdict, datetime.now(UTC)],
            )
    found = scraped(store)
    shown = {sample.labels["run"] for sample in found["logprobe_step"].samples}
    assert len(shown) == MOST_RUNS
    assert shown >= {"run-00", "run-01"}
    assert "over" not in shown
    assert found["logprobe_live_runs"].samples[0].value == MOST_RUNS + 3
    by = {labels[0]: value for labels, value in values(found["logprobe_live_runs_by_severity"]).items()}
    assert (by["critical"], by["warning"], sum(by.values())) == (1, 1, MOST_RUNS + 3)


def test_an_empty_home_is_a_valid_exposition(store):
    assert not scraped(store)["logprobe_k3_kl"].samples
    assert scraped(store)["logprobe_live_runs"].samples[0].value == 0


def test_odd_numbers_and_states_survive_the_parser():
    gauge, state = Family("g", "gauge", 'words "and" \\ more\nof them'), Family("s", "stateset", "words")
    for name, value in (("nan", float("nan")), ("inf", float("inf")), ("low", -float("inf")), ("small", 1e-12)):
        gauge.add(value, run=name)
    gauge.add(None, run="unknown")
    states(state, "on", ("on", "off"), run="r")
    found = {family.name: family for family in text_string_to_metric_families(render([gauge, state]))}
    assert repr(values(found["g"])) == "{('nan',): nan, ('inf',): inf, ('low',): -inf, ('small',): 1e-12}"
    assert values(found["s"]) == {("r", "on"): 1, ("r", "off"): 0}


def get(port, **headers):
    connection = HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("GET", "/metrics", headers=headers)
    response = connection.getresponse()
    answer = response.status, response.headers["Content-Type"], response.read().decode()
    connection.close()
    return answer


def test_over_http():
    def broken():
        raise StoreError("the disk is full")

    for metrics, status in ((lambda: "# EOF\n", 200), (broken, 503)):
        server = HealthServer(0, lambda: {"healthy": True}, metrics)
        try:
            answer = get(server.port)
        finally:
            server.close()
        assert answer[0] == status
        if status == 200:
            assert answer[1:] == (CONTENT_TYPE, "# EOF\n")
