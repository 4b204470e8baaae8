"""What a framework's loss cannot do is refused, and what it can is weighted so that its own divisor gives the stated mean; `make campaign NAME=frameworks`
does the same with the losses of TRL and ms-swift."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from spool_contents import health_events, rows

from logprobe.collectors import Recorder
from logprobe.collectors.correction import Correction, CorrectionConfig, correct
from logprobe.collectors.correction.presets import preset
from logprobe.collectors.directives import DirectiveFile, Directives
from logprobe.collectors.errors import InputError
from logprobe.collectors.integrations.correcting import Corrector, Divisor, share_left, unmet, weights_for

MIS = preset("mis")


@pytest.mark.parametrize(
    ("config", "known", "words"),
    [
        (preset("tis"), {"divisor": None, "parts": 8, "advantages": False}, None),
        (MIS, {"divisor": "batch", "parts": 8}, None),
        (MIS, {"divisor": None, "parts": 1}, "denominator=renormalize"),
        (preset("slime/tis-rs"), {"divisor": "sequence", "parts": 1}, None),
        (preset("slime/tis-rs"), {"divisor": "sequence", "parts": 2}, "normalize=True"),
        (preset("prime-rl/dppo"), {"divisor": "sequence", "parts": 1}, None),
        (preset("prime-rl/dppo"), {"divisor": "sequence", "parts": 1, "advantages": False}, "rs_by_advantage"),
    ],
)
def test_what_a_loss_cannot_do_is_named(config: CorrectionConfig, known: dict[str, Any], words: str | None) -> None:
    said = unmet(config, **known)
    assert (said is None) if words is None else (words in str(said))


def divided(terms: torch.Tensor, mask: torch.Tensor, divisor: Divisor) -> torch.Tensor:
    """As a framework does, which knows its own mask only."""
    if divisor == "sequence":
        return ((terms * mask).sum(-1) / mask.sum(-1).clamp(min=1)).mean()
    return (terms * mask).sum() / mask.sum()


@pytest.mark.parametrize("divisor", ["sequence", "batch", "update"])
def test_a_frameworks_own_divisor_gives_the_mean_of_what_is_left(divisor: Divisor) -> None:
    mask = torch.tensor([[1, 1, 1, 0], [1, 1, 1, 1], [1, 1, 0, 0]])
    rollout = torch.full(mask.shape, -1.0)
    trainer = rollout + torch.tensor([[0.1, 2.0, -0.2, 9.0], [-3.0, 0.3, 3.0, 0.1], [4.0, 4.0, 0.0, 0.0]]).clamp(
        max=0.9
    )
    trainer[2] = -9.0  # nothing of it is left
    correction = correct(MIS, rollout, trainer, mask)
    left = correction.mask
    terms = torch.arange(1.0, 13.0).reshape(mask.shape)
    weights = weights_for(correction, mask, divisor, share_left([correction], [mask]))
    assert divided(terms * weights, mask, divisor) == pytest.approx(
        float(divided(terms * correction.weights, left, divisor))
    )
    kept = correct(MIS.replace(denominator="keep"), rollout, trainer, mask)
    assert weights_for(kept, mask, divisor).equal(kept.weights)


def test_a_refusal_is_said_and_nothing_is_acknowledged(home: Path) -> None:
    DirectiveFile(home, "run").write(Directives("run").issue(1, MIS, "a test"), None)
    with Recorder(home, "run") as recorder:
        corrector = Corrector(recorder, "trl")
        assert corrector.wanted(0) is None
        assert corrector.wanted(1) == MIS
        assert corrector.weights(1, lambda _: "it cannot", lambda _: pytest.fail("asked for")) is None
        assert corrector.weights(1, lambda _: None, _unusable) is None
    (refused,) = health_events(home)["correction_impossible"]
    assert ("it cannot" in refused["message"], refused["count"]) == (True, 2)
    assert not [row for row in rows(home, "step") if row["correction"]]


def _unusable(_: CorrectionConfig) -> tuple[Correction, Any]:
    raise InputError("log-probs of two shapes")
