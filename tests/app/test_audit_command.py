"""`logprobe audit`: one list of what was done at several services, in which one that is away is a row."""

from __future__ import annotations

import json
import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from processes import called

from logprobe.monitor.home import Home
from logprobe.monitor.store.store import Store


@pytest.fixture
def fleet(tmp_path: Path) -> Path:
    """Two homes: what was done, one thing a minute, at one and the other in turn."""
    begun = datetime(2026, 1, 1, tzinfo=UTC)
    for place, name in enumerate(("a", "b")):
        with Store.open(Home(tmp_path / name).create()) as store, store.transaction() as cursor:
            for minute in range(place, 6, 2):
                given = {"author": "ada", "action": "noted", "subject": "r", "words": f"w{minute}"}
                store.execute(cursor, "alert_audit_write", time=begun + timedelta(minutes=minute), **given)
    services = {name: {"home": str(tmp_path / name)} for name in ("a", "b")}
    (tmp_path / "fleet.yaml").write_text(json.dumps({"services": services}))
    return tmp_path


def test_what_was_done_at_all_services_is_one_list_newest_first(fleet: Path) -> None:
    done = called("audit", "--json", LOGPROBE_FLEET=str(fleet))
    assert [(row["words"], Path(row["where"]).name) for row in json.loads(done.stdout)] == [
        (f"w{minute}", "ab"[minute % 2]) for minute in (5, 4, 3, 2, 1, 0)
    ]
    assert done.stderr == ""
    exactly = called("audit", "--count", "6", "--json", LOGPROBE_FLEET=str(fleet))
    assert (len(json.loads(exactly.stdout)), exactly.stderr) == (6, "")


def test_that_there_is_one_more_is_said(fleet: Path) -> None:
    done = called("audit", "--count", "5", "--json", LOGPROBE_FLEET=str(fleet))
    assert [row["words"] for row in json.loads(done.stdout)] == ["w5", "w4", "w3", "w2", "w1"]
    assert "1 older ones are not shown: --count" in done.stderr


def test_a_service_that_is_away_is_a_row_that_says_so(fleet: Path) -> None:
    shutil.rmtree(fleet / "b")
    done = called("audit", "--json", code=1, LOGPROBE_FLEET=str(fleet))
    first, *rest = json.loads(done.stdout)
    assert (first["where"], first["time"], first["action"]) == (str(fleet / "b"), None, "cannot be read")
    assert str(fleet / "b") in first["words"]
    assert [row["words"] for row in rest] == ["w4", "w2", "w0"]
    assert "cannot be read" in called("audit", code=1, LOGPROBE_FLEET=str(fleet)).stdout
