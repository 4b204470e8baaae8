"""`logprobe audit`: one list of what was done in several homes, in which one that cannot be read is a row."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from processes import called

from logprobe.monitor.home import Home
from logprobe.monitor.store.store import Store


@pytest.fixture
def homes(tmp_path: Path) -> tuple[str, ...]:
    """Two homes: what was done, one thing a minute, at one and the other in turn."""
    begun = datetime(2026, 1, 1, tzinfo=UTC)
    for place, name in enumerate(("a", "b")):
        with Store.open(Home(tmp_path / name).create()) as store, store.transaction() as cursor:
            for minute in range(place, 6, 2):
                given = {"author": "ada", "action": "noted", "subject": "r", "words": f"w{minute}"}
                store.execute(cursor, "alert_audit_write", time=begun + timedelta(minutes=minute), **given)
    return "--home", str(tmp_path / "a"), "--also", str(tmp_path / "b")


def test_what_was_done_in_all_homes_is_one_list_newest_first(homes: tuple[str, ...]) -> None:
    done = called("audit", *homes, "--json")
    assert [(row["words"], Path(row["where"]).name) for row in json.loads(done.stdout)] == [
        (f"w{minute}", "ab"[minute % 2]) for minute in (5, 4, 3, 2, 1, 0)
    ]
    assert done.stderr == ""
    exactly = called("audit", *homes, "--count", "6", "--json")
    assert (len(json.loads(exactly.stdout)), exactly.stderr) == (6, "")


def test_that_there_is_one_more_is_said(homes: tuple[str, ...]) -> None:
    done = called("audit", *homes, "--count", "5", "--json")
    assert [row["words"] for row in json.loads(done.stdout)] == ["w5", "w4", "w3", "w2", "w1"]
    assert "1 older ones are not shown: --count" in done.stderr


def test_a_home_that_cannot_be_read_is_a_row_that_says_so(homes: tuple[str, ...]) -> None:
    other = Path(homes[-1])
    (other / "logprobe.duckdb").unlink()
    done = called("audit", *homes, "--json", code=1)
    first, *rest = json.loads(done.stdout)
    assert (first["where"], first["time"], first["action"]) == (str(other), None, "cannot be read")
    assert str(other) in first["words"]
    assert [row["words"] for row in rest] == ["w4", "w2", "w0"]
    assert "cannot be read" in called("audit", *homes, code=1).stdout
