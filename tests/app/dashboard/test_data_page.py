"""What the Data page says of runs, files, collectors, retention and jobs, and what the SQL box hands to the browser."""

from __future__ import annotations

import csv
import io
import json
import threading
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest

from logprobe.app.dashboard.pages import data, data_home
from logprobe.app.dashboard.pages.sql_box import RunningQuery, answer, examples, schema_of
from logprobe.app.text.lost_records import about_file
from logprobe.app.text.nodes import is_late
from logprobe.collectors.errors import QueryError
from logprobe.monitor.home import Home
from logprobe.monitor.store.queries import MORE
from logprobe.monitor.store.store import Store

T0 = datetime(2026, 3, 1, 12, 0, 0, tzinfo=UTC)
RUN: dict[str, Any] = {
    "run": "r", "first_step": 0, "last_step": 9, "steps": 10, "sequences": 20, "tokens": 4000, "rollouts": 21, "first_time": T0,
    "last_time": T0, "raw_files": 1, "raw_bytes": 2048, "store_share": 0.5, "imported": True, "lost_sequences": 0, "lost_tokens": 7,
    "quarantined": 1,
}  # fmt: skip
KEPT: dict[str, Any] = {
    "run": "r", "sequences": 20, "with_raw": 5, "reduced": 4, "steps": 10, "steps_with_raw": 3, "first_step": 7, "last_step": 9, "files": 1,
    "bytes": 2048, "training_bytes": 1024, "rollout_bytes": 1024, "oldest_at": T0, "newest_at": T0, "merged": 0,
    "folded": 0, "last_folded": None, "sampled": 0, "sampled_from": None, "summed": 0,
}  # fmt: skip
FILE: dict[str, Any] = {
    "path": "quarantine/r/w/1.step.arrow", "origin": "spool/r/w/1.step.arrow", "run": "r", "reason": "truncated", "message": "cut", "bytes": 300,
    "moved_at": T0, "total": 250,
}  # fmt: skip
STORED = data_home.Stored(
    runs=[RUN], kept=[KEPT], quarantine=[FILE], store={"database_size": "2.0 KiB", "wal_size": "0 bytes"}
)


def rows(blocks: list[dict[str, Any]], name: str) -> list[dict[str, Any]]:
    (found,) = [block["rows"] for block in blocks if block["type"] == "table" and block["name"] == name]
    return list(found)


def facts(blocks: list[dict[str, Any]]) -> dict[str, str]:
    return {name: value for block in blocks if block["type"] == "facts" for name, value in block["items"]}


# --- The account ---


def test_a_run_says_what_is_stored_of_it_and_what_is_lost() -> None:
    (line,) = rows(data_home.runs_blocks(STORED, [], "r"), "runs")
    assert line["cells"][0] == "r, imported"
    assert line["cells"][1].startswith("no data")
    assert line["cells"][2] == "10 (0 to 9)"
    assert line["cells"][5] == "raw 2 KiB in 1 file; statistics about 1 KiB"
    assert line["cells"][6] == "7 tokens, 1 file quarantined"
    assert line["tone"] == "warning"


def test_how_far_the_store_is_behind() -> None:
    status = {"running": True, "pid": 7, "started": "2026-03-01T12:00:00+00:00", "home": "/h", "backlog": {"segments": 3, "bytes": 5000, "oldest_seconds": 62.0}}  # fmt: skip
    said = facts(data_home.ingest_blocks(status, STORED, "9 GiB free"))
    assert said["waiting in spool"] == "3 files, 4.88 KiB, the oldest 1 min old"
    assert said["service"] == "process 7, since 2026-03-01 12:00:00"
    away = facts(data_home.ingest_blocks({}, STORED, "9 GiB free"))
    assert (away["waiting in spool"], away["ingest lag"], away["service"]) == ("–", "–", "not running")


def test_a_file_set_aside_says_why_and_what_to_do() -> None:
    blocks = data_home.files_blocks(STORED, {}, blocked="")
    assert blocks[0]["note"].endswith("the newest 1 of 250")
    (line,) = rows(blocks, "quarantine")
    assert line["cells"][2].startswith("truncated: the file is incomplete")
    assert "replace the file in quarantine" in line["cells"][3]
    assert [action["label"] for action in line["actions"]] == ["Retry", "Drop"]
    assert rows(blocks, "stuck") == []
    assert about_file("something new")[1] == "the message says why"


def test_a_file_that_cannot_be_read_now_says_why_and_when_it_is_tried_again() -> None:
    file = {"path": "/h/spool/r/w/1.arrow", "run": "r", "error": "EIO: Input/output error", "since": T0.timestamp(), "attempts": 3, "retry_seconds": 4.0}  # fmt: skip
    blocks = data_home.files_blocks(STORED, {"stuck": {"number": 1, "seconds": 9.0, "files": [file]}}, blocked="no")
    (line,) = rows(blocks, "stuck")
    assert line["cells"][2:] == ["EIO: Input/output error", "2026-03-01 12:00:00", "3; the next in 4 s"]
    assert {action["disabled"] for action in rows(blocks, "quarantine")[0]["actions"]} == {"no"}


def test_retention_says_of_which_steps_only_sums_are_kept() -> None:
    folded = {
        **KEPT,
        "sequences": 200,
        "steps": 90,
        "folded": 80,
        "last_folded": 79,
        "sampled": 40,
        "sampled_from": 60,
        "summed": 150,
    }
    progress = {"bytes": 3 << 20, "max_bytes": 4 << 20, "over": False}
    blocks = data_home.kept_blocks(replace(STORED, kept=[folded]), {"jobs": {"store_budget": {"progress": progress}}})
    assert facts(blocks)["store"] == "3 MiB of 4 MiB in use"
    (line,) = rows(blocks, "folded")
    assert line["cells"][:4] == ["r", "80 of 90", "79", "40, from step 60"]
    assert "150 in folded steps" in rows(blocks, "kept")[0]["cells"][1]
    over = data_home.kept_blocks(STORED, {"jobs": {"store_budget": {"progress": {**progress, "over": True}}}})
    assert facts(over)["store"].endswith("nothing more can be folded")
    assert rows(over, "folded") == []
    grown = {**progress, "free_bytes": 2 << 20, "growth": 5.0 * (1 << 30)}
    growing = data_home.kept_blocks(STORED, {"jobs": {"store_budget": {"progress": grown}}})
    assert facts(growing)["store"] == "3 MiB of 4 MiB in use; 2 MiB free in its file; grows by 5 GiB a day"
    assert facts(data_home.kept_blocks(STORED, {}))["store"].startswith("size unknown")


def test_retention_says_its_limits_and_why_tokens_are_gone() -> None:
    progress = {"raw_files": 1, "raw_bytes": 2048, "removed_files": 2, "removed_bytes": 4096, "missing_files": 0, "merged_files": 0, "merged_into": 0, "max_bytes": 4096, "max_run_bytes": None, "max_age_seconds": 86400.0}  # fmt: skip
    blocks = data_home.kept_blocks(STORED, {"jobs": {"retention": {"progress": progress}}})
    said = facts(blocks)
    assert said["limits"] == "4 KiB for the home, no older than 1 d; oldest removed first"
    assert said["kept now"] == "2 KiB in 1 file, 50% of the home's limit"
    (line,) = rows(blocks, "kept")
    assert line["cells"][1] == "5 of 20 sequences; 4 recorded as statistics only, 11 removed by the limits"
    assert line["cells"][2] == "7 to 9, 3 of 10"
    assert facts(data_home.kept_blocks(STORED, {}))["limits"].startswith("unknown")
    unlimited = {**progress, "max_bytes": None, "max_age_seconds": None}
    assert (
        facts(data_home.kept_blocks(STORED, {"jobs": {"retention": {"progress": unlimited}}}))["limits"]
        == "none: everything is kept"
    )


def test_a_job_that_fails_says_so() -> None:
    job = {"finished_at": "2026-03-01T12:00:00+00:00", "runs": 5, "failures": 2, "last_error": "StoreError: full", "progress": {"segments": 0, "seconds": 0.25, "problems": []}}  # fmt: skip
    (line,) = rows(data_home.jobs_blocks({"jobs": {"ingest": job}}), "jobs")
    assert line["cells"] == [
        "ingest",
        "2026-03-01 12:00:00, took 0.25 s",
        "5, 2 failed: StoreError: full",
        "nothing to do",
    ]
    assert line["tone"] == "critical"
    assert rows(data_home.jobs_blocks({}), "jobs") == []


COUNTERS = {
    "dropped": {"queue_full": {"calls": 1, "sequences": 8, "tokens": 900}}, "written": {"sequences": 12, "tokens": 3000},
    "queue": {"bytes": 64, "limit_bytes": 128}, "disk": "ok", "cost": {"calls": 4, "caller_seconds": 2e-4}, "last_error": None,
}  # fmt: skip
COLLECTOR: dict[str, Any] = {
    "writer": "w", "component": "trainer", "closed": False, "last_sign": T0, "counters": json.dumps(COUNTERS),
    "started": json.dumps({"pid": 4, "host": "node1", "rank": 3, "replica": None, "versions": {"logprobe": "0.1", "torch": None}}),
    "self_test": None, "self_test_severity": None, "failed": None, "segments": 2, "tokens": 3000, "last_segment": T0,
}  # fmt: skip


def collector(**changed: Any) -> dict[str, Any]:
    (line,) = rows(data.collectors_blocks("r", [COLLECTOR | changed]), "collectors")
    return dict(line)


def test_a_collector_says_who_it_is_what_it_lost_and_what_it_costs() -> None:
    line = collector()
    assert line["cells"] == [
        "trainer w",
        "pid 4 on node1; rank 3; logprobe 0.1",
        "last heard 2026-03-01 12:00:00",
        "none",
        "3,000 tokens in 12 sequences; 2 files arrived",
        "queue full: 1 call, 8 sequences, 900 tokens",
        "queue 50% of 128 B; disk ok; 50 µs a call",
    ]
    assert line["tone"] == "warning"
    assert collector(failed="the recording process ended with ValueError")["tone"] == "critical"
    assert collector(self_test="the engine is not recorded", self_test_severity="error")["tone"] == "critical"


@pytest.mark.parametrize(
    "nonsense",
    [None, "", "no json", "[1]", '{"dropped": null, "queue": {}, "written": {}}', '{"versions": 3, "pid": null}'],
)
def test_what_a_collector_says_of_itself_may_be_anything(nonsense: str | None) -> None:
    line = collector(counters=nonsense, started=nonsense, segments=None)
    assert len(line["cells"]) == 7
    assert all(isinstance(cell, str) for cell in line["cells"])


# --- SQL ---


def asked(ask: Any) -> RunningQuery:
    asking = RunningQuery("SELECT 1", ask)
    assert asking.wait(90)
    return asking


def test_a_result_is_text_with_the_values_for_programs_beside_it() -> None:
    table = pa.table(
        {
            "n": [1, None],
            "x": [0.123456789, float("nan")],
            "word": ["<b>x</b>", "a,b"],
            "list": [list(range(100)), None],
        }
    ).replace_schema_metadata({MORE: b"true"})
    drawn = answer(asked(lambda *_: table))
    assert drawn["state"] == "done"
    assert drawn["words"].startswith("the first 2 rows; there are more, 4 columns, in ")
    assert drawn["rows"][0][:3] == ("1", "0.12346", "<b>x</b>")
    assert drawn["rows"][0][3] == "[0, 1, 2, 3, 4, 5, 6, 7, … 100 in all]"
    assert drawn["rows"][1][0] is None
    assert [column[2] for column in drawn["columns"]] == [True, True, False, False]
    first, second, _ = csv.reader(io.StringIO(drawn["csv"]))
    assert first == ["n", "x", "word", "list"]
    assert json.loads(second[3]) == list(range(100))


def test_a_result_that_is_too_large_is_shown_and_not_downloaded() -> None:
    drawn = answer(asked(lambda *_: pa.table({"a": pa.array(range(1_000_000), pa.int64())}).slice(0, 900_000)))
    assert drawn["csv"] is None
    assert "--csv" in drawn["large"]


def test_a_refusal_says_why_and_a_running_query_that_it_runs() -> None:
    def refuse(*_: str) -> pa.Table:
        raise QueryError("DROP is refused\nsecond line")

    drawn = answer(asked(refuse))
    assert drawn["state"] == "refused"
    assert drawn["words"].endswith("DROP is refused")
    go_on = threading.Event()
    asking = RunningQuery("SELECT 1", lambda *_: go_on.wait(90) and pa.table({"a": [1]}))
    assert answer(asking)["state"] == "running"
    go_on.set()
    assert asking.wait(90)
    assert answer(asking)["words"].startswith("1 row, 1 column, in ")
    assert answer(None) == {"state": "none"}


def test_every_example_is_a_statement_that_runs_about_any_run(tmp_path: Any) -> None:
    with Store.open(Home(tmp_path / "home")) as store:
        for title, sql in examples("it's a run"):
            assert title
            assert store.query(sql).num_rows == 0, title
        described = schema_of(store.read("app_data_schema").to_pylist())
    views = [place["name"] for place in described if place["view"]]
    assert {"runs", "steps", "sequences", "tokens", "metrics"} <= set(views)
    assert described[0]["view"]
    assert not described[-1]["view"]
    assert ["run", "varchar"] in next(place["columns"] for place in described if place["name"] == "runs")


def test_nodes_that_ship_say_how_far_they_are_behind():
    node = {
        "node": "node-1",
        "seen_at": None,
        "silent_seconds": 1.0,
        "segments": 0,
        "bytes": 0,
        "behind_seconds": 0.0,
        "clock_ahead_seconds": 0.1,
        "version": "0.1.0",
        "problem": None,
    }
    late = {
        **node,
        "node": "<b>\x1b[31m",
        "segments": 5,
        "bytes": 4096,
        "behind_seconds": 7200.0,
        "silent_seconds": 7000.0,
    }
    wrong = {**node, "clock_ahead_seconds": 86_400.0}
    unknown = {**node, "segments": None, "behind_seconds": None}
    blocks = data.nodes_blocks("run", [node, late, wrong, unknown])
    text = str(blocks)
    assert data.nodes_blocks("run", []) == []
    assert "2 h behind: 5 segments, 4 KiB when last heard, 1 h ago" in text
    assert "1 d fast" in text
    assert "unknown" in text
    assert "\x1b" not in text
    assert [is_late(each) for each in (node, late, wrong, unknown)] == [False, True, True, True]
