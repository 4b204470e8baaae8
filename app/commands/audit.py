"""`logprobe audit`: what people and programs did here, and at every other place that is asked, newest first.

The JSON form: ``{"where", "time", "author", "action", "subject", "words"}`` a row; of a place that could not be read
`time` is null and `words` says why.
"""

from __future__ import annotations

import argparse
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

from logprobe.app.commands.runs import places_of
from logprobe.app.text import tables
from logprobe.collectors.errors import LogprobeError
from logprobe.collectors.plain_text import complain
from logprobe.monitor import queries
from logprobe.monitor.elsewhere import Briefly

AWAY: Final = "cannot be read"
_COLUMNS: Final = ("time", "author", "action", "subject", "words", "where")


def run(arguments: argparse.Namespace) -> int:
    """Prints the audits of the home and of each --also as one. Exit code 1 when a place could not be read, which is a
    row."""
    _, places = places_of(arguments)
    with ThreadPoolExecutor(len(places)) as pool:
        answers = list(pool.map(lambda where: _rows(where, arguments.count), places))
    away = [row for _, rows in answers for row in rows if row["time"] is None]
    done = sorted((row for _, rows in answers for row in rows if row["time"] is not None), key=lambda row: row["time"])
    newest = done[::-1][: arguments.count]
    if arguments.json:
        print(tables.dump_lines([*away, *newest]))
    elif away or newest:
        print(tables.aligned(list(_COLUMNS), [[row[name] for name in _COLUMNS] for row in [*away, *newest]]))
    if (older := sum(total for total, _ in answers) - len(newest)) > 0:
        complain(f"{older:,} older ones are not shown: --count")
    return int(bool(away))


def _rows(where: str, count: int) -> tuple[int, list[dict[str, Any]]]:
    """How many a place has in all, and the newest of them."""
    try:
        rows = queries.alert_audit(Briefly(where), run=None, count=count).to_pylist()
    except LogprobeError as error:
        return 0, [{"where": where, "time": None, "author": None, "action": AWAY, "subject": None, "words": str(error)}]
    done = [{"where": where, **{name: value for name, value in row.items() if name != "total"}} for row in rows]
    return rows[0]["total"] if rows else 0, done
