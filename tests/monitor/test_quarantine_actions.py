"""Putting files back from quarantine, or dropping them: once, with a note of who did it, with a service and without."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from processes import eventually, logprobe, service
from segments import RUN, records, trained

from logprobe.collectors.errors import ConfigurationError
from logprobe.collectors.spool.segments import SegmentPath, SpoolWriter
from logprobe.monitor.home import Home
from logprobe.monitor.live.ingest import SETTLE_SECONDS, Ingester
from logprobe.monitor.live.quarantine_actions import DROP, RETRY, part, perform
from logprobe.monitor.reader import Reader
from logprobe.monitor.store.store import Store


def broken(home: Path, sample: str) -> tuple[SegmentPath, bytes]:
    """A segment that was cut short a while ago, and its whole content."""
    where = SpoolWriter(home, RUN, f"writer-{sample}").write("training", records("training", trained(sample)))
    whole = where.path.read_bytes()
    where.path.write_bytes(whole[:100])
    old = where.path.stat().st_mtime - SETTLE_SECONDS - 1
    os.utime(where.path, (old, old))
    return where, whole


def aside(reader: Reader) -> set[str]:
    return set(reader.read("quarantine_list", run=None)["path"].to_pylist())


def _segments(home: Path) -> list[Path]:
    return list((home / "spool").rglob("*.arrow"))


def listed(home: Path) -> list[dict]:
    return json.loads(logprobe("store", "quarantine", "--json", "--home", home).stdout)["files"]


def test_a_mended_file_is_put_back_and_counts_once_and_a_dropped_one_never(home: Path) -> None:
    repaired, whole = broken(home, "a")
    broken(home, "b")
    with service(home) as reader:
        eventually(lambda: len(aside(reader)) == 2 and not _segments(home), "both are quarantined")
        shown = listed(home)
        assert {(row["reason"], row["happened"].partition(":")[0]) for row in shown} == {
            ("truncated", "the file is incomplete")
        }
        assert all("replace the file in quarantine" in row["remedy"] for row in shown)
        names = {row["path"] for row in shown}
        assert names == aside(reader)
        first = f"quarantine/{RUN}/writer-a/{repaired.path.name}"
        second = (names - {first}).pop()
        again = logprobe("store", "quarantine", "--retry", first, "--home", home, LOGNAME="ada").stdout
        assert again == f"{first}: returned\n"
        # Its row is written before it is moved.
        eventually(lambda: first in aside(reader) and (home / first).exists(), "it is still broken, and comes back")
        (home / first).write_bytes(whole)
        assert perform(Home(home), RETRY, {"file": first, "author": "ada"})["status"] == "returned"
        sql = "SELECT sample_id FROM training_sequences"
        eventually(lambda: reader.query(sql)["sample_id"].to_pylist() == ["a"], "it is ingested")
        assert (
            logprobe("store", "quarantine", "--drop", second, "--home", home, LOGNAME="ada").stdout
            == f"{second}: dropped\n"
        )
        assert perform(Home(home), DROP, {"file": second, "author": "ada"})["status"] == "gone"
        assert aside(reader) == set()
        done = reader.read("alert_audit", run="", count=9).to_pylist()
        assert {(row["author"], row["action"], row["subject"]) for row in done} == {
            ("ada", "moved back to the spool", first),
            ("ada", "dropped from quarantine", second),
        }
    assert [path for path in (home / "quarantine").rglob("*") if path.is_file()] == []
    logprobe("store", "quarantine", "--retry", "--home", home, code=1)


def test_without_a_service_it_is_done_directly(home: Path) -> None:
    where, whole = broken(home, "a")
    with Store.open(Home(home)) as store:
        assert Ingester(store).run_once().quarantined == 1
    name = f"quarantine/{RUN}/{where.writer}/{where.path.name}"
    (home / name).write_bytes(whole)
    assert perform(Home(home), RETRY, {"file": name, "author": "ada"}) == {"file": name, "status": "returned"}
    assert perform(Home(home), RETRY, {"file": name, "author": "ada"}) == {"file": name, "status": "gone"}
    with Store.open(Home(home)) as store:
        assert Ingester(store).run_once().segments == 1


def test_what_can_never_be_a_segment_is_not_put_back(store: Store) -> None:
    stray = store.home.spool / "notes.txt"
    stray.write_text("not ours")
    Ingester(store).run_once()
    retry = part(store, None).actions[RETRY]  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="drop the file"):
        retry.run({"file": "notes.txt", "author": "ada"})
    assert (store.home.quarantine / "notes.txt").exists()
    # Whoever names a file outside of quarantine names none.
    drop = part(store, None).actions[DROP]  # type: ignore[arg-type]
    assert drop.run({"file": "quarantine/../logprobe.duckdb", "author": "eve"})["status"] == "gone"
    assert store.home.database.exists()


def test_a_file_in_its_place_is_not_overwritten(store: Store) -> None:
    where, _ = broken(store.home.path, "a")
    Ingester(store).run_once()
    where.path.write_bytes(b"another")
    name = f"{RUN}/{where.writer}/{where.path.name}"
    with pytest.raises(ConfigurationError, match="already exists in the spool"):
        part(store, None).actions[RETRY].run({"file": name, "author": "ada"})  # type: ignore[arg-type]
    assert where.path.read_bytes() == b"another"


def test_a_row_whose_file_was_put_back_by_a_killed_service_is_forgotten(store: Store) -> None:
    where, whole = broken(store.home.path, "a")
    Ingester(store).run_once()
    aside = store.home.quarantine / RUN / where.writer / where.path.name
    aside.rename(where.path)  # and killed before the row went
    where.path.write_bytes(whole)
    ingester = Ingester(store)
    assert ingester.run_once().segments == 1
    Ingester(store)
    assert store.read("quarantine_list", run=None).num_rows == 0
