"""Cause × share × advice, cell by cell; levels against the table of priors; acceptances."""

from __future__ import annotations

import pytest

from logprobe.monitor.diagnosis.causes import BY_NAME, CAUSES
from logprobe.monitor.diagnosis.levels import PRIORS, Traits, expected
from logprobe.monitor.diagnosis.result import Acceptance, Finding, Level
from logprobe.monitor.diagnosis.shares import Share
from logprobe.monitor.diagnosis.urgency import STANDARDS, weighed

FAULTS = [c.name for c in CAUSES if c.layer == "inference_path" and c.kind == "fault"]
NOISE, GROWTH, NOTES = ([c.name for c in CAUSES if c.kind == kind] for kind in ("noise", "growth", "note"))
SEMANTIC = [c.name for c in CAUSES if c.layer == "semantic"]
MATERIAL, SMALL = Share(now=0.3, growth=0.0, k3=3e-4), Share(now=0.1, growth=0.1, k3=1e-4)
CAUSED = Share(now=0.1, growth=0.6, k3=1e-3)


def level(status: str = "as expected", numerics: float | None = 1e-3) -> Level:
    return Level(1e-3, numerics, 1e-5, 2e-3, {}, "", status)  # type: ignore[arg-type]


def weigh(cause: str, share: Share | None, *, sure: float = 0.9, effect: float = 1.0, **more: object) -> Finding:
    found = Finding(cause, BY_NAME[cause].layer, sure, effect, {}, "", "")
    of = {} if share is None else {cause: share}
    accepted = more.pop("accepted", ())
    (result,) = weighed([found], of, more.pop("level", level()), accepted, **more)  # type: ignore[arg-type]
    return result


def cell(*arguments: object, **more: object) -> tuple[str, bool]:
    found = weigh(*arguments, **more)  # type: ignore[arg-type]
    return found.urgency, found.vetoes


@pytest.mark.parametrize("cause", SEMANTIC)
def test_a_wrong_distribution_vetoes_whatever_its_share(cause: str) -> None:
    for share in (MATERIAL, SMALL, None):
        assert cell(cause, share) == ("act", True)
        assert cell(cause, share, effect=0.4) == ("watch", True)
    assert cell(cause, MATERIAL, sure=0.4) == ("watch", False)


@pytest.mark.parametrize("cause", FAULTS)
def test_an_engine_fault_vetoes_where_it_is_material(cause: str) -> None:
    assert cell(cause, MATERIAL) == ("act", True)
    assert cell(cause, CAUSED) == ("act", True)  # little of the gap, much of its growth
    assert cell(cause, None) == ("act", True)  # what is not known may be all of it
    assert cell(cause, SMALL) == ("watch", False)
    assert cell(cause, MATERIAL, sure=0.4) == ("watch", False)


@pytest.mark.parametrize("cause", NOTES)
def test_what_makes_no_log_prob_wrong_is_watched_and_vetoes_nothing(cause: str) -> None:
    for share in (MATERIAL, CAUSED, SMALL, None):
        assert cell(cause, share) == ("watch", False)


@pytest.mark.parametrize("cause", NOISE)
@pytest.mark.parametrize(
    ("status", "urgency"),
    [("as expected", "informational"), ("unknown set-up", "informational"), ("not measured", "informational"), ("above", "watch"), ("far above", "act")],
)  # fmt: skip
def test_noise_is_judged_by_the_level_of_its_set_up(cause: str, status: str, urgency: str) -> None:
    assert cell(cause, MATERIAL, level=level(status)) == (urgency, urgency != "informational")
    assert cell(cause, SMALL, level=level(status)) == (urgency, False)


def test_lag_asks_for_a_correction_where_it_grows_or_adds_much() -> None:
    assert cell("staleness", Share(now=0.6, k3=1e-3)) == ("informational", False)
    assert cell("staleness", Share(now=0.6, k3=2 * STANDARDS.off_policy)) == ("act", False)
    assert cell("staleness", CAUSED, trend="growing") == ("act", False)
    assert cell("staleness", CAUSED, trend="healthy") == ("informational", False)
    assert cell("staleness", CAUSED, trend="calibrating") == ("watch", False)
    # Where noise alone is above the recommended limit, lag has to add more than noise.
    assert cell("staleness", Share(now=0.4, k3=2e-2), level=level(numerics=3e-2)) == ("informational", False)


@pytest.mark.parametrize("cause", GROWTH)
def test_growth_asks_for_action_where_the_runs_own_past_says_so(cause: str) -> None:
    for share in (MATERIAL, SMALL, None):
        assert cell(cause, share, trend="growing") == cell(cause, share, trend="critical") == ("act", False)
        assert cell(cause, share, trend="calibrating") == ("watch", False)
        assert cell(cause, share, trend="healthy") == ("informational", False)


def test_what_is_accepted_comes_back_above_its_limit() -> None:
    fault = "stale_prefix_cache"
    share = Share(now=0.5, k3=1e-3, k3_first=2e-4)
    found = weigh(fault, share, accepted=[Acceptance(fault, "known", up_to=2e-3)])
    assert (found.urgency, found.vetoes, found.accepted is not None) == ("informational", False, True)
    for limit in (
        Acceptance(fault, "known", up_to=5e-4),
        Acceptance(fault, "known", was=4e-4),
        Acceptance(fault, "known"),
    ):
        back = weigh(fault, share, accepted=[limit])
        assert (back.urgency, back.vetoes, back.accepted) == ("act", True, None)
        assert back.evidence["accepted_up_to"] < share.k3
    semantic = weigh("raw_logprobs", share, accepted=[Acceptance("raw_logprobs", "known", up_to=1.0)])
    assert (semantic.urgency, semantic.vetoes) == ("informational", True)


def traits(engine: str | None, trainer: str | None, *, experts: bool | None = False, quantized: bool = False) -> Traits:
    return Traits(engine, trainer, experts, quantized, {})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("setup", "high"),
    [
        (traits("full", "full"), 1e-5),
        (traits("full", None), 2e-3),  # the trainer may be in bf16
        (traits("bf16", "full"), 2e-3),
        (traits("bf16", None, experts=True), 1e-1),
        (traits("bf16", None, experts=None), 1e-1),  # dense or not is not known
        (traits("bf16", "bf16", quantized=True), 9e-2),
        (traits(None, None, experts=None), 1e-1),
    ],
)
def test_what_is_expected_follows_from_what_is_known(setup: Traits, high: float) -> None:
    assert expected(setup)[1] == high
    assert setup.nothing == (setup.engine is None and setup.trainer is None)


def test_every_expected_level_has_a_source() -> None:
    assert all(prior.source and 0 <= prior.low < prior.high for prior in PRIORS)
