"""Runs of a size that takes too long to record: the stored rows of a recorded run, copied under other names and to later steps.

Copies have everything that the store keeps of a run but its raw tokens (as after retention). What a service concludes from a run that was made
longer (growth, alerts, diagnosis) is left to the service; a run that is copied as it is has it already.
"""

from __future__ import annotations

import re
from typing import Final

from logprobe.monitor.store.store import Store

# Not copied: what is not a run's, or names a file or a notification of the original.
_NEVER: Final = {
    "raw_files",
    "quarantine",
    "notifications",
    "deliveries",
    "incidents",
}
# Of a run that becomes longer: conclusions from its steps, which follow from the copy.
_CONCLUDED: Final = {"diagnoses"}
_ALERTED: Final = {"alert_states", "controllers", "controller_actions"}
_ONCE: Final = {"config_records", "health_records"}
_MOMENT: Final = "TIMESTAMP WITH TIME ZONE"
_IDS: Final = ("segment_id", "rollout_segment", "sample_id")
_SPANS: Final = re.compile(r"^STRUCT\(.*version.*\)\[\]$", re.IGNORECASE)


def as_other_runs(store: Store, run: str, names: str, count: int) -> None:
    """Copies a run `count` times; `names`: of the copies, with one place for their number (``"other-{:04d}"``).

    Each is an hour older than the one before: runs of the last day are looked at again and again.
    """
    with store.transaction() as cursor:
        cursor.execute("CREATE OR REPLACE TEMP TABLE copies (copy_number BIGINT, copy_name VARCHAR)")
        cursor.executemany("INSERT INTO copies VALUES (?, ?)", [[at, names.format(at)] for at in range(count)])
        for table, columns in _tables(store).items():
            changes = {"run": "copy_name", "raw_file": "NULL", "raw_kept": "false"}
            changes |= {name: f"copy_name || '/' || {name}" for name in ("segment_id", "rollout_segment")}
            moments = [name for name, kind in columns.items() if kind == _MOMENT]
            changes |= {name: f"{name} - (1 + copy_number) * INTERVAL 1 HOUR" for name in moments}
            cursor.execute(_copy(table, columns, changes), {"run": run})


def as_longer_run(store: Store, run: str, name: str, steps: int, times: int) -> None:
    """Makes the run `name`, in which a run of `steps` steps (0, 1, …) follows itself so many times."""
    with store.transaction() as cursor:
        cursor.execute("CREATE OR REPLACE TEMP TABLE copies (copy_number BIGINT, copy_name VARCHAR)")
        cursor.execute("INSERT INTO copies SELECT range, $name FROM range($times)", {"name": name, "times": times})
        (newest, lasted) = cursor.execute(
            "SELECT max(revision), max(time) - min(time) FROM step_summaries WHERE run = $run", {"run": run}
        ).fetchone()
        cursor.execute(f"SELECT max(number) FROM (SELECT nextval('revision') AS number FROM range({newest * times}))")
        for table, columns in _tables(store).items():
            if table in _CONCLUDED | _ALERTED:
                continue
            changes = _later(columns, steps, newest)
            changes |= {
                each: f"{each} + copy_number * $lasted" for each, kind in columns.items() if _moment(each, kind)
            }
            where = " AND copy_number = 0" if table in _ONCE else ""
            values = {"run": run} | ({"lasted": lasted} if any("$lasted" in each for each in changes.values()) else {})
            cursor.execute(_copy(table, columns, changes) + where, values)


def _later(columns: dict[str, str], steps: int, revisions: int) -> dict[str, str]:
    version = f"(TRY_CAST({{}} AS BIGINT) + copy_number * {steps})::VARCHAR"
    changes = {"run": "copy_name", "raw_file": "NULL", "raw_kept": "false", "step": f"step + copy_number * {steps}"}
    changes |= {name: f"copy_name || '/' || copy_number || '/' || {name}" for name in _IDS} | {
        "revision": f"revision + copy_number * {revisions}"
    }
    changes |= {name: version.format(name) for name in ("weight_version", "version")}
    for name, kind in columns.items():
        if _SPANS.match(kind):
            shifted = version.format("each.version")
            changes[name] = f"list_transform({name}, lambda each: struct_update(each, version := {shifted}))"
    return changes


def _moment(name: str, kind: str) -> bool:
    return kind == _MOMENT and name not in {"ingested_at", "computed_at"}


def _copy(table: str, columns: dict[str, str], changes: dict[str, str]) -> str:
    replaced = ", ".join(f"{value} AS {name}" for name, value in changes.items() if name in columns)
    return f"INSERT INTO {table} BY NAME SELECT * EXCLUDE (copy_number, copy_name) REPLACE ({replaced}) FROM {table}, copies WHERE run = $run"


def _tables(store: Store) -> dict[str, dict[str, str]]:
    """Columns and their types of each table that has rows by run."""
    sql = "SELECT table_name, column_name, data_type FROM duckdb_columns() WHERE NOT internal AND table_name IN (SELECT table_name FROM duckdb_tables())"
    found: dict[str, dict[str, str]] = {}
    for row in store.query(sql).to_pylist():
        found.setdefault(row["table_name"], {})[row["column_name"]] = row["data_type"]
    return {table: columns for table, columns in found.items() if "run" in columns and table not in _NEVER}
