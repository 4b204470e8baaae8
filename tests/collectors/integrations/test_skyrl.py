"""What SkyRL alone has: samples of older weights, and a forward pass that it skips. The rest is in `tests/conformance`."""

from __future__ import annotations

from pathlib import Path

import pytest
from conformance.host import closing
from conformance.other_hosts import SkyRl, skyrl_trainer
from spool_contents import health_events, rows


@pytest.mark.parametrize("trainer", ["RayPPOTrainer", "FullyAsyncRayPPOTrainer"])
def test_a_skipped_forward_pass_has_nothing_to_compare(
    home: Path, monkeypatch: pytest.MonkeyPatch, trainer: str
) -> None:
    """An asynchronous trainer does not note the version of each sample."""
    monkeypatch.setenv("LOGPROBE_HOME", str(home))
    host, close = SkyRl(monkeypatch), closing(monkeypatch)
    host.trainer, kept = skyrl_trainer(trainer), host.batch
    monkeypatch.setattr(host, "batch", lambda: type(kept())(kept(), action_log_probs=None))
    host.begin()
    host.step()
    close()
    assert not rows(home, "training")
    versions = {span["version"] for row in rows(home, "rollout") for span in row["spans"] or []}
    assert versions <= {None} if "Async" in trainer else versions == {"0"}
    assert len(rows(home, "rollout")) == 4
    assert "nothing can be compared" in health_events(home)["no_logprobs"][0]["message"]
