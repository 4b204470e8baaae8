"""What a node says of itself, where a Ray cluster's landing puts it."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from typing import Any

from logprobe.monitor.home import Home
from logprobe.monitor.shipped.nodes import FOLDER


def note_node(home: Home, node: str, runs: Mapping[str, Mapping[str, Any]]) -> None:
    """Write a note of a node: the length of each run's queue."""
    folder = home.path / FOLDER
    folder.mkdir(exist_ok=True)
    note = {"node": node, "time": time.time(), "version": "0.1.0", "problem": None, "runs": dict(runs)}
    (folder / f"{node}.json").write_text(json.dumps(note))
