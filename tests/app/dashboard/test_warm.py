"""What the first page stands on is loaded before anybody asks for it, and is little."""

from __future__ import annotations

import json
import subprocess
import sys

HEAVY = {"apscheduler", "duckdb", "matplotlib", "polars", "scipy", "slack_sdk", "torch", "transformers", "vllm"}
PROGRAM = """
import gc, json, sys
from logprobe.app.dashboard import assets
assets.load()
loaded = sorted({name.partition(".")[0] for name in sys.modules})
pages = [name for name in sys.modules if name.startswith("logprobe.app.dashboard.pages.")]
print(json.dumps({"loaded": loaded, "pages": pages, "frozen": gc.get_freeze_count(), "ready": assets._compressed.cache_info().currsize}))
"""


def test_the_first_page_is_loaded_and_nothing_heavy_with_it() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True, timeout=120)
    found = json.loads(done.stdout.splitlines()[-1])
    assert "logprobe.app.dashboard.pages.overview" in found["pages"]
    assert HEAVY.isdisjoint(found["loaded"])
    assert found["frozen"] > 0  # collecting garbage after every run of a page passes over it
    assert found["ready"] > 1  # modules and plotly.js are compressed
