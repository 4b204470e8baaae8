"""What is only in the store is in the journal too: a store that was deleted has it again."""

from __future__ import annotations

import math
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from store_contents import rows

from logprobe.collectors.errors import StoreError
from logprobe.monitor.service import actions
from logprobe.monitor.service.deleting import forget
from logprobe.monitor.store.journal import Journal
from logprobe.monitor.store.said import STATEMENTS
from logprobe.monitor.store.schema import VERSION
from logprobe.monitor.store.store import Store

NOW = datetime(2026, 1, 1, 12, 0, 0, 123456, UTC)
TABLES = (
    "controller_actions", "controllers", "deliveries", "experiments", "incidents", "notifications", "quarantine",
    "user_actions",
)  # fmt: skip


def contents(store: Store) -> dict[str, list[str]]:
    """All rows of the tables, but for when a message was put into the outbox: its age starts again."""
    columns = {"notifications": "* EXCLUDE enqueued_at"}
    return {table: sorted(map(str, rows(store, f"SELECT {columns.get(table, '*')} FROM {table}"))) for table in TABLES}


def act(store: Store, run: str) -> None:
    """Have users, the controller and the senders of messages do everything that they can."""

    def do(*statements: tuple[str, dict[str, Any]], incoming: pa.Table | None = None) -> None:
        with store.transaction() as cursor:
            for name, params in statements:
                store.execute(cursor, name, incoming if name == "outbox_route" else None, **params)
            actions.note(store, cursor, NOW, author="a user", action=f"{statements[0][0]}", runs=run, words=run)

    def say(action: str, **facts: Any) -> None:
        with store.transaction() as cursor:
            actions.note(store, cursor, NOW, action=action, **facts)

    episode, keys = f"{run}/rule/1", [f"{run}-{number}" for number in range(4)]
    until = NOW + timedelta(hours=1)
    for author in ("a", "b"):  # the first one stays
        say("acknowledged", author=author, key=episode, runs=run, words="ü\n")
    for silence in ("one", "two"):
        say("silenced", author="a", key=f"{run}-{silence}", runs=run, what="*", until=until, words="r")
    say("silence ended", author="a", key=f"{run}-one", runs=run, what="*", words="by a")
    for up_to in (3e-3, math.nan):
        say("finding accepted", author="a", runs=run, what="c", up_to=up_to, words="b")
    do(("incident_open", {"id": f"{run}#1", "run": run, "number": 1, "now": NOW, "step": 7, "since": None}))  # fmt: skip
    for key in keys:
        do(("outbox_enqueue", {"key": key, "run": run, "rule": "rule", "episode": episode, "state": "firing", "severity": "critical", "step": 7, "time": NOW, "document": "{}", "incident": None}))  # fmt: skip
    do(("incident_adopt", {"id": f"{run}#1", "run": run, "episodes": [episode]}))
    routed = pa.table({"run": [run] * 3, "key": keys[:3], "channel": ["slack"] * 3})
    do(("outbox_route", {"now": NOW}), ("outbox_routed", {"keys": keys[:3], "now": NOW}), incoming=routed)
    facts = {"channel": "slack", "now": NOW, "status": "waiting", "begun": 0, "uncertain": False}
    facts |= {"next_at": None, "error": None, "receipt": None}
    for key in keys[:3]:
        do(("outbox_progress", facts | {"key": key, "begun": 1, "uncertain": True, "next_at": until}))
    do(("outbox_progress", facts | {"key": keys[0], "status": "sent", "receipt": '{"ts": "1"}'}))
    do(("outbox_progress", facts | {"key": keys[1], "status": "dead", "error": "gone"}))
    do(("outbox_progress", facts | {"key": keys[2], "error": "e", "next_at": until}))
    do(("controller_save", {"run": run, "control": '{"on": true}', "directives": "{}", "now": NOW}))
    do(("controller_act", {"run": run, "number": 1, "step": 7, "now": NOW, "name": "switched_on", "reason": "r", "words": "w", "severity": "info", "details": "{}"}))  # fmt: skip
    do(("incident_close", {"id": f"{run}#1", "now": NOW, "step": 9}))
    do(
        (
            "experiments_write",
            {"run": run, "kind": "bisect", "now": NOW, "author": "a", "departs": "d", "document": "{}"},
        )
    )
    for file in ("one", "two"):
        do(("quarantine_add", {"path": f"quarantine/{run}/{file}", "origin": f"spool/{run}/{file}", "run": run, "reason": "checksum", "message": "ü", "bytes": 7, "moved_at": NOW}))  # fmt: skip
    do(("quarantine_forget", {"path": f"quarantine/{run}/one"}))


def deleted(store: Store) -> Store:
    """The store of the home after its file was deleted."""
    store.close()
    for path in store.home.path.glob("logprobe.duckdb*"):
        path.unlink()
    return Store.open(store.home)


def test_a_deleted_store_has_again_what_is_only_in_it(store: Store) -> None:
    ran, execute = set(), store.execute

    def noted(cursor: Any, name: str, /, *args: Any, **params: Any) -> None:
        ran.add(name)
        execute(cursor, name, *args, **params)

    store.execute = noted  # type: ignore[method-assign]
    act(store, "run")
    act(store, "another")
    assert ran == STATEMENTS, "a statement of the list that is left out here would be known to nobody"
    before = contents(store)
    assert all(before.values())
    with deleted(store) as again:
        assert contents(again) == before
        act(again, "third")
        forget(again, "run")
        before = contents(again)
        with deleted(again) as third:  # of what was deleted nothing comes back
            assert contents(third) == before


def test_every_statement_that_changes_these_tables_is_kept_or_follows_from_records() -> None:
    folder = Path(__file__).parents[2] / "monitor" / "sql"
    verbs = ("INSERT INTO", "INSERT OR REPLACE INTO", "INSERT OR IGNORE INTO", "UPDATE", "DELETE FROM")
    changing = set()
    for path in folder.glob("*.sql"):
        for part in re.split(r"^(?=-- \w+: )", path.read_text(), flags=re.MULTILINE):
            if any(re.search(rf"{verb} {table}\b", part) for verb in verbs for table in TABLES):
                name = re.match(r"-- (\w+): ", part)
                changing.add(name[1] if name and name[1].startswith(path.stem) else path.stem)
    # Of incidents, what the next look finds again.
    found_again = {"incident_keep", "incident_diagnosed"}
    assert changing - STATEMENTS == found_again


def test_a_journal_of_another_schema_is_refused_and_nothing_is_made(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    for action in ("one", "two"):
        with store.transaction() as cursor:
            actions.note(store, cursor, NOW, author="a", action=action, words="w")
    monkeypatch.setattr("logprobe.monitor.store.schema.VERSION", 1000)
    with pytest.raises(StoreError, match="line 1: written by another version of logprobe"):
        deleted(store)
    monkeypatch.undo()
    with Store.open(store.home) as again:
        assert len(rows(again, "FROM user_actions")) == 2


def test_a_line_that_violates_a_constraint_is_named_with_its_remedy(store: Store) -> None:
    act(store, "run")
    controller = {"run": None, "control": "{}", "directives": "{}", "now": NOW.isoformat()}
    Journal(store.home.path).append("statements", {"schema": VERSION, "of": [["controller_save", controller, None]]})
    number = len((store.home.path / "journal.jsonl").read_text().splitlines())
    with pytest.raises(StoreError, match=rf"journal.jsonl, line {number}: cannot be replayed .*remove this line"):
        deleted(store)
