"""Putting files back from quarantine, or dropping them: once, with a note of who did it, with a service and without."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from processes import logprobe
from segments import RUN, spool, trained

from logprobe.collectors.errors import ConfigurationError
from logprobe.collectors.spool.segments import SegmentPath
from logprobe.monitor.home import Home
from logprobe.monitor.live.ingest import SETTLE_SECONDS, Ingester, IngestReport
from logprobe.monitor.live.quarantine_actions import DROP, RETRY, part, perform
from logprobe.monitor.store.store import Store


def broken(home: Path, sample: str) -> tuple[SegmentPath, bytes]:
    """A segment that was cut short a while ago, and its whole content."""
    (where,) = spool(home, RUN, f"writer-{sample}", training=[trained(sample)])
    whole = where.path.read_bytes()
    where.path.write_bytes(whole[:100])
    old = where.path.stat().st_mtime - SETTLE_SECONDS - 1
    os.utime(where.path, (old, old))
    return where, whole


def quarantine(home: Path, *arguments: str, code: int = 0) -> str:
    return logprobe("store", "quarantine", *arguments, "--home", home, code=code, LOGNAME="ada").stdout


def ingested(home: Path) -> IngestReport:
    with Store.open(Home(home)) as store:
        return Ingester(store).run_once()


def test_a_mended_file_is_put_back_and_counts_once_and_a_dropped_one_never(home: Path) -> None:
    """Without a service; through one: tests/monitor/test_spool_faults.py."""
    repaired, whole = broken(home, "a")
    broken(home, "b")
    assert ingested(home).quarantined == 2
    shown = json.loads(quarantine(home, "--json"))["files"]
    assert {(row["reason"], row["happened"].partition(":")[0]) for row in shown} == {
        ("truncated", "the file is incomplete")
    }
    assert all("replace the file in quarantine" in row["remedy"] for row in shown)
    first = f"quarantine/{RUN}/writer-a/{repaired.path.name}"
    (second,) = {row["path"] for row in shown} - {first}
    assert quarantine(home, "--retry", first) == f"{first}: returned\n"
    assert ingested(home).quarantined == 1, "it is still broken"
    (home / first).write_bytes(whole)
    for status in ("returned", "gone"):
        assert perform(Home(home), RETRY, {"file": first, "author": "ada"}) == {"file": first, "status": status}
    assert ingested(home).segments == 1
    assert quarantine(home, "--drop", second) == f"{second}: dropped\n"
    assert perform(Home(home), DROP, {"file": second, "author": "ada"})["status"] == "gone"
    with Store.open(Home(home)) as store:
        assert store.query("SELECT sample_id FROM training_sequences")["sample_id"].to_pylist() == ["a"]
        assert store.read("quarantine_list", run=None).num_rows == 0
        done = store.read("user_actions_of", run=None).to_pylist()
    assert {(row["author"], row["action"], row["subject"]) for row in done} == {
        ("ada", "moved back to the spool", first),
        ("ada", "dropped from quarantine", second),
    }
    assert [path for path in (home / "quarantine").rglob("*") if path.is_file()] == []
    quarantine(home, "--retry", code=1)


def test_what_is_not_put_back_and_what_was_put_back_by_a_killed_service(store: Store) -> None:
    actions = part(store, None).actions  # type: ignore[arg-type]
    (store.home.spool / "notes.txt").write_text("not ours")
    where, whole = broken(store.home.path, "a")
    killed, content = broken(store.home.path, "b")
    Ingester(store).run_once()
    with pytest.raises(ConfigurationError, match="drop the file"):  # which can never be a segment
        actions[RETRY].run({"file": "notes.txt", "author": "ada"})
    assert (store.home.quarantine / "notes.txt").exists()
    # Whoever names a file outside of quarantine names none.
    assert actions[DROP].run({"file": "quarantine/../logprobe.duckdb", "author": "eve"})["status"] == "gone"
    assert store.home.database.exists()
    where.path.write_bytes(b"another")
    with pytest.raises(ConfigurationError, match="already exists in the spool"):
        actions[RETRY].run({"file": f"{RUN}/{where.writer}/{where.path.name}", "author": "ada"})
    assert where.path.read_bytes() == b"another"
    where.path.write_bytes(whole)
    (store.home.quarantine / RUN / killed.writer / killed.path.name).rename(
        killed.path
    )  # and killed before the row went
    killed.path.write_bytes(content)
    assert Ingester(store).run_once().segments == 2
    Ingester(store)
    left = store.read("quarantine_list", run=None)["path"].to_pylist()
    assert f"quarantine/{RUN}/{killed.writer}/{killed.path.name}" not in left
