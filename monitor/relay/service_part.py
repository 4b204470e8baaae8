"""What the receiver of relays tells the service: how far nodes are behind, and who was refused, which the audit
keeps."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

import pyarrow as pa

from logprobe.collectors.errors import ConfigurationError
from logprobe.monitor.service import actions
from logprobe.monitor.service.jobs import Part
from logprobe.monitor.store.store import Store

NOTE: Final = "relay.note"
_FORGET_DAYS: Final = 7
_SUBJECT: Final = "relay"
_MOST: Final = 20_000  # rows in one document
_NODES: Final = pa.schema(
    [
        *((name, pa.string()) for name in ("run", "node", "writer", "seen_at", "version", "problem")),
        *((name, pa.int64()) for name in ("segments", "bytes")),
        *((name, pa.float64()) for name in ("oldest_seconds", "clock_ahead_seconds")),
    ]
)


def part(store: Store, _: threading.Event) -> Part:
    """What the service offers."""
    return Part(
        actions=actions.offered({NOTE: ("note what relays say of their queues, and who was refused", _note)}, store)
    )


def _note(store: Store, document: Mapping[str, Any], now: datetime) -> dict[str, object]:
    """``{"nodes": […], "refusals": […]}`` as `Observations.take` has it → how many of each."""
    nodes, refusals = document.get("nodes", []), document.get("refusals", [])
    if not isinstance(nodes, list) or not isinstance(refusals, list) or len(nodes) + len(refusals) > _MOST:
        raise ConfigurationError(f"{NOTE} takes lists of nodes and refusals, at most {_MOST:,} in all")
    with store.transaction() as cursor:
        if nodes:
            store.execute(cursor, "relay_node_write", pa.Table.from_pylist(nodes, schema=_NODES))
            store.execute(cursor, "relay_nodes_forget", now=now, days=_FORGET_DAYS)
        for refusal in refusals:
            author, action = f"{refusal['who']} at {refusal['peer']}", f"was refused: {refusal['what']}"
            message = f"{refusal['words']} (times: {refusal['count']:,}, the first at {refusal['since']})"
            store.execute(
                cursor, "alert_audit_write", time=now, author=author, action=action, subject=_SUBJECT, words=message
            )
    return {"nodes": len(nodes), "refusals": len(refusals)}
