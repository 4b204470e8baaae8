"""What a user of TRL has to know before the first run is documented: the disk it takes, the oldest version, what a correction cannot do."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from logprobe.collectors.correction import CorrectionConfig
from logprobe.collectors.correction.presets import preset
from logprobe.collectors.integrations import correcting, trl

PAGE = (Path(__file__).parents[2] / "docs" / "frameworks.md").read_text()


@pytest.mark.parametrize(
    ("config", "parts"),
    [(preset("mis"), 1), (preset("slime/tis-rs"), 2)],
)
def test_what_is_refused_is_in_the_table(config: CorrectionConfig, parts: int) -> None:
    """Each setting that the adapter refuses, and each loss for which it does."""
    rows = [line for line in PAGE.splitlines() if line.startswith("| `")]
    reason = correcting.unmet(config, divisor=None if parts == 1 else "sequence", parts=parts)
    assert reason is not None
    setting = re.match(r"(?:denominator=)?(\w+)", reason)
    assert setting is not None
    (row,) = [row for row in rows if row.startswith(f"| `{setting[1]}`")]
    if setting[1] == "renormalize":
        assert [loss for loss, divisor in trl._DIVISORS.items() if divisor is None and f"`{loss}`" not in row] == []
