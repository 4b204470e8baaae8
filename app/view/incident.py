"""The last incident of a run: what went badly wrong, what happened, and what changed before it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from logprobe.app.report.gather import read
from logprobe.app.report.incident import Incident, changes, facts, happened, last_good
from logprobe.monitor import queries
from logprobe.monitor.compare import Place
from logprobe.monitor.queries import Source

_INTERNAL: Final = frozenset({"document", "told"})


def last(source: Source, run: str) -> Mapping[str, object] | None:
    """Return the last incident of a run as a document, or None if it had none."""
    newest = queries.incident_newest(source, runs=[run]).to_pylist()
    if not newest:
        return None
    opened = queries.incident_show(source, incident=newest[0]["id"]).to_pylist()[0]
    return _document(read(Place(run, run, source), opened))


def _document(incident: Incident) -> dict[str, object]:
    opened = incident.opened or {}
    keys = ("time", "step", "what", "words")
    return {
        **{name: value for name, value in opened.items() if name not in _INTERNAL},
        "facts": dict(facts(incident)),
        "happened": [dict(zip(keys, row, strict=True)) for row in happened(incident)],
        "changes": [dict(zip(keys, row, strict=True)) for row in changes(incident)],
        "last_good_step": last_good(incident),
        "checkpoint": incident.saved and incident.saved["step"],
        "checkpoint_folder": incident.saved and incident.saved["folder"],
    }
