"""What people do about incidents: comment, and close one with a resolution. Doing it twice is doing it once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, Final

from logprobe.alerts import audit
from logprobe.alerts.incidents import ledger
from logprobe.monitor import judgement
from logprobe.monitor.service import actions
from logprobe.monitor.service.action import Action
from logprobe.monitor.store.store import Store

COMMENT: Final = "incidents.comment"
CLOSE: Final = "incidents.close"


def of(
    store: Store, *, page: str | None = None, clock: Callable[[], datetime] = lambda: datetime.now(UTC)
) -> dict[str, Action]:
    """The actions on an open store. `page`: address of the dashboard."""

    def close(store: Store, document: Mapping[str, Any], now: datetime) -> dict[str, object]:
        return _close(store, {**document, "page": page}, now)

    return actions.offered({**ACTIONS, CLOSE: (ACTIONS[CLOSE][0], close)}, store, clock)


def _comment(store: Store, document: Mapping[str, Any], now: datetime) -> dict[str, object]:
    """``{"incident": …, "by_id": false, "author": …, "words": …}``."""
    opened = ledger.find(store, actions.text(document, "incident"), by_id=bool(document.get("by_id")))
    author, comment = (actions.text(document, name) for name in ("author", "words"))
    with store.transaction() as cursor:
        audit.note(store, cursor, now, author=author, action="commented", subject=opened["id"], words=comment)
    return {"incident": opened["id"]}


def _close(store: Store, document: Mapping[str, Any], now: datetime) -> dict[str, object]:
    """``{"incident": …, "by_id": false, "author": …, "resolution": …}``; of one that is closed, it says who did it."""
    opened = ledger.find(store, actions.text(document, "incident"), by_id=bool(document.get("by_id")))
    author, resolution = (actions.text(document, name) for name in ("author", "resolution"))
    if opened["closed_at"] is not None:
        return {"incident": opened["id"], "closed_by": opened["closed_by"], "closed_at": opened["closed_at"]}
    judged = judgement.read(store, [opened["run"]], now)[opened["run"]]
    with store.transaction() as cursor:
        calm, page = judged.severity != "critical", document.get("page")
        end = ledger.Closing(author, resolution, now, judged.newest, calm, judged.severity, page)
        ledger.close(store, cursor, opened["id"], end)
        audit.note(store, cursor, now, author=author, action="incident closed", subject=opened["id"], words=resolution)
    return {"incident": opened["id"], "closed_by": author, "closed_at": now}


ACTIONS: Final[actions.Actions] = {
    COMMENT: ("comment on an incident", _comment),
    CLOSE: ("close an incident with a resolution", _close),
}
