"""What verl alone has: bypass mode, and losses that take weights or do not. The rest is in `tests/conformance`; `make campaign NAME=verl` runs its loops."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from conformance.host import closing
from conformance.verl_hosts import CONFIG, Config, VerlV0, VerlV1
from spool_contents import health_events, rows

from logprobe.collectors.correction import CorrectionConfig
from logprobe.collectors.correction.presets import preset
from logprobe.collectors.directives import DirectiveFile, Directives


@pytest.fixture
def close(home: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("LOGPROBE_HOME", str(home))
    return closing(monkeypatch)


@pytest.mark.parametrize("kind", [VerlV0, VerlV1])
def test_bypass_mode_has_nothing_to_compare(kind: Any, close: Any, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    host = kind(monkeypatch)
    host.config = Config(CONFIG, algorithm=Config(rollout_correction=Config(bypass_mode=True)))
    host.begin()
    host.step()
    close()
    assert len(rows(home, "rollout")) == host.count
    assert not rows(home, "training")
    assert "no_logprobs" in health_events(home)


@pytest.mark.parametrize(
    ("actor", "config", "words"),
    [
        ({}, preset("mis"), None),
        ({}, preset("prime-rl/dppo"), None),
        ({"loss_agg_mode": "seq-mean-token-sum"}, preset("mis"), "denominator=renormalize"),
        ({"policy_loss": Config(loss_mode="geo_mean")}, preset("tis"), "geo_mean"),
        (
            {"policy_loss": Config(loss_mode="gspo"), "loss_agg_mode": "seq-mean-token-sum"},
            preset("mis"),
            "denominator=renormalize",
        ),
    ],
)
def test_a_correction_is_applied_as_stated_or_refused(
    actor: Any, config: CorrectionConfig, words: str | None, close: Any, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = VerlV0(monkeypatch)
    host.config = Config(CONFIG, actor_rollout_ref=Config(CONFIG["actor_rollout_ref"], actor=Config(actor)))
    allow(host, config, home, monkeypatch)
    host.step()
    close()
    assert (host.applied is not None) == (words is None)
    assert bool([row for row in rows(home, "step") if row["correction"]]) == (words is None)
    if words is not None:
        assert words in health_events(home)["correction_impossible"][0]["message"]


def test_v1s_workers_count_tokens_in_a_mask_that_no_rejection_changes(
    close: Any, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = VerlV1(monkeypatch)
    host.queue.kv_batch_put = pytest.fail  # type: ignore[assignment, method-assign]
    allow(host, preset("mis"), home, monkeypatch)
    host.step()
    close()
    assert "denominator=renormalize" in health_events(home)["correction_impossible"][0]["message"]
    assert not [row for row in rows(home, "step") if row["correction"]]


def allow(host: Any, config: CorrectionConfig, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("logprobe.collectors.switch._FIRST_SECONDS", 90.0)
    run = CONFIG["trainer"]["experiment_name"]
    DirectiveFile(home, run).write(Directives(run).issue(1, config, "a test"), None)
    host.correction = True
    host.begin()
