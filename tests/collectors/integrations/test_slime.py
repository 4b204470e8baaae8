"""What slime, miles and vime alone have: parts of one sample, losses that are handed to us. The rest is in `tests/conformance`."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from conformance.host import RUN, closing
from conformance.slime_hosts import ARGS, Miles, Slime, Vime, train_data
from spool_contents import by_sample, rows

from logprobe.collectors.correction import CorrectionConfig
from logprobe.collectors.directives import DirectiveFile, Directives


@pytest.fixture
def host(home: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("LOGPROBE_HOME", str(home))
    monkeypatch.setenv("LOGPROBE_RUN", RUN)
    made = Slime(monkeypatch)
    made.close = closing(monkeypatch)
    made.begin()
    return made


def test_parts_of_one_sample_have_a_number_each(home: Path, host: Any) -> None:
    data = train_data()
    data["sample_indices"] = [100, 100, 100, 103]
    host.train(data)
    host.close()
    assert set(by_sample(home, "training")) == {"3/100", "3/100.1", "3/100.2", "3/103"}


def loss_of(host: Any) -> tuple[Any, torch.Tensor, list[torch.Tensor]]:
    """What the loss is made of; of the first sequence all ratios are far too large."""
    data = train_data()
    data["rollout_log_probs"][0] = data["rollout_log_probs"][0] - 5.0
    loss = torch.ones(sum(map(len, data["log_probs"])))
    named = {"train_log_probs": "log_probs", "rollout_log_probs": "rollout_log_probs", "loss_masks": "loss_masks"}
    result, masks, _ = host.adapter.tis(ARGS, pg_loss=loss, **{ours: data[name] for ours, name in named.items()})
    assert masks is data["loss_masks"]
    return result, loss, masks


def test_tis_passes_the_loss_through_until_the_controller_switches(
    home: Path, host: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("logprobe.collectors.switch._FIRST_SECONDS", 90.0)  # for the first look, on a busy machine
    config = CorrectionConfig(is_level="token", is_mode="mask", is_lower=0.5, is_upper=2.0)
    DirectiveFile(home, RUN).write(Directives(RUN).issue(4, config, "a test"), None)
    host.train(train_data())
    passed, given, _ = loss_of(host)
    assert passed is given
    host.at = 4
    host.train(train_data())
    loss, _, masks = loss_of(host)
    host.close()
    first = len(masks[0])
    assert loss[:first].tolist() == [0.0] * first
    assert loss[first:][torch.cat(masks[1:]).bool()].tolist() == pytest.approx([0.99005] * 20, abs=1e-4)
    assert [row["step"] for row in rows(home, "step") if row["correction"]] == [4]


@pytest.mark.parametrize("kind", [Slime, Vime, Miles])
def test_its_own_correction_is_called_under_its_own_name(home: Path, kind: Any, monkeypatch: Any) -> None:
    monkeypatch.setenv("LOGPROBE_HOME", str(home))
    host, close = kind(monkeypatch), closing(monkeypatch)
    host.begin()
    host.module(host.vanilla, vanilla_tis_function=lambda args, **named: ("own", named["loss_masks"], {}))
    named = {"pg_loss": torch.ones(3), "loss_masks": [torch.ones(3)]}
    assert host.adapter.tis(SimpleNamespace(use_tis=True), **named)[0] == "own"
    assert host.adapter.tis(SimpleNamespace(use_tis=False), **named)[0] is named["pg_loss"]
    close()
