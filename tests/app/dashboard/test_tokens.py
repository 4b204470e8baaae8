"""What the Tokens page says: which step first, what is left of it, what is wrong with a token; and text that stays text."""

from __future__ import annotations

import unicodedata
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from logprobe.app.dashboard.charts.packing import unpacked
from logprobe.app.dashboard.data.tokens import StepList, StepTokens
from logprobe.app.dashboard.pages import token_text as words
from logprobe.app.dashboard.pages import tokens as page
from logprobe.app.dashboard.pages.tokens import Corrected, Strip, page_of, strip_of
from logprobe.app.dashboard.theme import DARK, LIGHT
from logprobe.collectors.correction import CorrectionConfig
from logprobe.collectors.correction.presets import preset
from logprobe.collectors.errors import ServiceUnavailableError
from logprobe.monitor.analysis.token_view import STATES, Rule, Side, Tokens, effect, pair_tokens

NAN = float("nan")
SEQUENCE: dict[str, Any] = {
    "step": 2, "place": 1, "sample_id": "a/1", "group_id": "a", "tokens": 3, "broken": 1, "n_total": 5, "k3_kl": 0.2, "share": 0.25,
    "logprob_abs_diff_mean": 0.1, "log_ratio_mean": 0.1, "log_ratio_min": -1.0, "log_ratio_max": 1.0, "reward": None, "rank": 0,
    "replica": "r0", "trainer_weight_version": "3", "spans": [{"start": 0, "end": 4, "version": "2"}], "cached_prefix_tokens": 0,
    "finish_reason": "stop", "rollout_source": "joined", "alignment": "masked", "tags": [("environment", "math")], "raw_kept": True,
    "segment_id": "s", "row": 0,
}  # fmt: skip
SIDES = [{"rollout_source": "joined", "alignment": "masked", "sequences": 4, "kept": 4, "reduced": 0}]


def steps(**columns: list[float]) -> StepList:
    size = len(columns["k3"])
    return StepList(
        step=np.arange(size) * 10,
        k3=np.array(columns["k3"]),
        broken=np.array(columns.get("broken", [0.0] * size)),
        kept=np.array(columns.get("kept", [4] * size)),
    )


def step_of(**fields: Any) -> StepTokens:
    given = {"step": 20, "pair": "backend", "sides": SIDES, "sequences": [SEQUENCE], "chosen": SEQUENCE, "asked": None}
    return StepTokens(**{**given, "says_correction": False, "correction": None, **fields})


def strip(*, current: bool = True) -> Strip:
    r = np.array([NAN, -1.0, -2.0, NAN, -1.0])
    known = np.array([False, True, True, True, True])
    sides = {
        "rollout": Side(r, known),
        "trainer": Side(np.array([-1.0, -1.5, -0.5, -1.0, -1.0]), np.ones(5, bool)),
        "current": Side(np.full(5, -1.0 if current else NAN), np.full(5, current)),
    }
    tokens = Tokens(
        token_id_N=np.arange(5), mask_N=np.array([False, True, True, True, True]), sides=sides, entropy_N=np.full(5, NAN),
        advantage_N=np.ones(5), version_N=np.array([-1, 0, 0, 1, 1]), versions=("2", "<b>3</b>"),
    )  # fmt: skip
    done = Corrected("MIS", preset("mis"), effect(preset("mis"), tokens))
    return Strip(tokens, pair_tokens(tokens, "backend"), [done], {1: "<script>\n", 2: "\u202e"})


def notes(step: StepTokens, shown: Strip | None) -> str:
    return " ".join(page_of("r", steps(k3=[1.0, 2.0, 3.0]), step, shown, LIGHT)["notes"])


@pytest.mark.parametrize(
    ("columns", "first"),
    [
        ({"k3": [0.1, 0.3, 0.2]}, 10),
        ({"k3": [0.1, 0.3, 0.2], "broken": [1.0, 0.0, 2.0]}, 20),  # broken tokens are in no K3
        ({"k3": [0.1, 0.3, 0.2], "kept": [4, 0, 4]}, 20),
        ({"k3": [0.1, 0.3, 0.2], "kept": [0, 0, 0]}, 10),
        ({"k3": [NAN, NAN], "broken": [NAN, NAN]}, 10),
        ({"k3": [9.0, *[0.1] * 50]}, 500),  # the newest of the recent ones that are as bad
    ],
)
def test_the_worst_recent_step_with_raw_tokens_is_suggested(columns: dict[str, list[float]], first: int) -> None:
    assert steps(**columns).suggested() == first


def test_without_steps_none_is_suggested() -> None:
    assert steps(k3=[]).suggested() is None


def test_a_sequence_of_the_list_is_chosen_without_reading() -> None:
    other = SEQUENCE | {"sample_id": "b"}
    step = step_of(sequences=[SEQUENCE, other])
    shown = step.showing("b")
    assert shown is not None
    assert shown.chosen == other
    assert step.showing("c") is None


def test_what_is_left_of_raw_tokens_is_said_with_its_reason() -> None:
    assert notes(step_of(), strip()) == ""
    sides = [{**SIDES[0], "kept": 1, "reduced": 2}]
    gone = step_of(sides=sides, chosen=SEQUENCE | {"raw_kept": False})
    said = notes(gone, None)
    assert "kept for 1 of 4 sequences: 2 were recorded as statistics only; 1 were removed" in said
    assert "Its statistics are below" in said
    assert "could not be read; retrying" in notes(step_of(), None)


def test_what_was_asked_for_and_is_not_there_is_said() -> None:
    assert "no sequence called <i>x</i>; showing the worst" in notes(step_of(asked="<i>x</i>"), strip())
    assert "No sequences were recorded" in notes(step_of(sequences=[], chosen=None), None)
    unmeasured = {name: value for name, value in SEQUENCE.items() if name not in {"share", "broken", "k3_kl"}}
    said = notes(step_of(pair="update", sequences=[unmeasured], chosen=unmeasured), strip())
    assert "update was not measured in this step; record `current_logprobs`" in said
    assert "cannot be recomputed" in notes(step_of(says_correction=True), strip())
    assert "shown as ids: no tokenizer at x" in notes(step_of(), replace(strip(), problem="no tokenizer at x"))


def test_facts_of_a_sequence_leave_nothing_unknown_looking_known() -> None:
    facts = dict(page_of("r", steps(k3=[1.0]), step_of(), strip(), DARK)["facts"])
    assert facts["tokens"] == "4 trained on, of 5"
    assert facts["left out of every value"] == "1 broken"
    assert facts["ρ of the sequence"] == "2.72 over 3 measured tokens"
    assert (
        facts["records"]
        == "rollout log-probs joined from the engine's record; the tokens under the mask match the engine's"
    )
    assert facts["environment"] == "math"
    assert "reward" not in facts
    unknown = dict(
        page_of("r", steps(k3=[1.0]), step_of(chosen=SEQUENCE | {"spans": None, "share": None}), None, DARK)["facts"]
    )
    assert (unknown["weights of the engine"], unknown["share of the step's K3"]) == ("unknown", "–")
    assert "ρ of the sequence" not in unknown
    assert unknown["left out of every value"] == "1 broken or missing"


def test_the_strip_travels_as_columns_and_what_is_not_recorded_as_nothing() -> None:
    drawn = strip_of(strip(current=False), step_of())
    assert "entropy" not in drawn["columns"]
    assert "current" not in drawn["columns"]
    assert {"id", "rollout", "rollout_known", "trainer", "d", "ratio", "k3", "state", "weight0", "rule0"} <= set(
        drawn["columns"]
    )
    assert (drawn["n"], drawn["first"], drawn["switches"], drawn["turns"]) == (5, 1, [3], [])
    assert drawn["worst"] == [3, 2, 1, 4]
    assert drawn["texts"] == {"1": "<script>⏎", "2": "⟨U+202E⟩"}
    assert "1 are broken" in drawn["alt"]
    marks = page_of("r", steps(k3=[0.5, NAN], broken=[2.0, NAN], kept=[0, 3]), step_of(), strip(), LIGHT)["chooser"]
    assert unpacked(marks["k3"]).tolist()[0] == 0.5


def test_every_state_and_rule_has_words() -> None:
    for pair, sides in {"backend": ("rollout", "trainer"), "update": ("trainer", "current")}.items():
        described = words.states(pair)
        assert len(described) == len(STATES)
        assert {each["side"] for each in described} == {"", *sides}
    every = CorrectionConfig(
        is_level="geometric",
        is_mode="clip",
        is_lower=0.5,
        rs_level="sequence",
        rs_measure="k3",
        rs_upper=0.1,
        veto=1e-4,
        sequence_mask_delta=0.2,
    )
    named = words.rules(every)
    assert named[Rule.LIMITED_BELOW] == "clipped: geometric ρ of the sequence is below 0.5"
    assert named[Rule.REJECTED_ABOVE] == "dropped: K3 of the sequence is above 0.1"
    assert "1.00e-4" in named[Rule.VETO]
    assert words.rules(preset("tis"))[Rule.LIMITED_ABOVE] == "truncated: ρ is above 2"


def test_weights_of_an_engine_in_words() -> None:
    parts = [{"start": 3 * at, "end": 3 * at + 3, "version": str(at)} for at in range(6)]
    assert words.spans({"spans": parts}, 2) == "0 for 3, 1 for 3, 4 more"
    assert words.spans({"spans": [{"start": 0, "end": 3, "version": None}]}) == "unknown"
    assert words.spans({"spans": None}) == ""


def test_nothing_that_hides_or_moves_text_survives() -> None:
    everything = "".join(map(chr, range(0x3000))) + "\U000e0001\U0001f600\ue000\udce2"
    shown = words.visible(everything, spaces=False)
    assert {unicodedata.category(sign) for sign in shown} & {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"} == set()
    assert words.visible("é日本 مرحبا", spaces=False) == "é日本 مرحبا"
    assert words.visible("\u0301x")[0] == "◌"


def test_while_the_service_is_away_only_the_same_is_shown_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page.st, "session_state", {})

    def away() -> str:
        raise ServiceUnavailableError("no answer")

    remembered = page._remembered
    assert remembered("x", "a", lambda: "first", version="1") == "first"
    assert remembered("x", "a", away, version="1") == "first"  # not even asked
    assert remembered("x", "a", away, version="2") == "first"
    assert remembered("x", "b", away, version="2") is None  # never another sequence's tokens
    assert remembered("x", "a", lambda: "second", version="2") == "second"
    assert remembered("x", "b", lambda: None) is None
    assert remembered("x", "a", away, version="3") == "second"
