"""What pages say of rows of the store: unknown is no zero, trouble has a tone, and everything has its reason."""

from __future__ import annotations

import re
from contextlib import nullcontext
from dataclasses import replace
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pytest

from logprobe.app.dashboard.access.settings import Permission
from logprobe.app.dashboard.pages import alerts, compare, correction, mismatch, runs, tokens, weights
from logprobe.app.dashboard.pages import data as page
from logprobe.app.dashboard.reading import query, token_text
from logprobe.app.dashboard.reading.mismatch import MOST_TAGS, Seen, Sliced, newest
from logprobe.app.dashboard.reading.tokens import StepList, StepTokens
from logprobe.app.dashboard.theme import LIGHT
from logprobe.app.dashboard.told import tell
from logprobe.app.dashboard.ui import link
from logprobe.app.view import parity
from logprobe.app.view.correction import changed
from logprobe.app.view.story import Facts, Item, Points, Section, Table
from logprobe.collectors.correction.presets import preset
from logprobe.collectors.errors import QueryError
from logprobe.monitor.analysis.token_view import DROPPED, STATES, Rule, Side, Tokens, effect, pair_tokens
from logprobe.monitor.analysis.weight_updates import Lane
from logprobe.monitor.compare import History, compared
from logprobe.monitor.judging.parity import Check, Parity, Setting
from logprobe.monitor.metrics.catalog import KEYS
from logprobe.monitor.store.queries import MORE

T0 = datetime(2026, 3, 1, 12, 0, 0, tzinfo=UTC)
NAN = float("nan")

# --- Alerts ---

ALERT: dict[str, Any] = {
    "rule": "gap-growing", "severity": "warning", "phase": "firing", "started_step": 12, "step": 90, "value": None,
    "words": None, "episode": "r/gap-growing/1", "acknowledged_by": None, "muted": None,
}  # fmt: skip


def test_only_what_fires_and_is_nobodys_can_be_acknowledged_and_without_a_channel_nobody_counts_as_told() -> None:
    cases = [{}, {"acknowledged_by": "Ada"}, {"phase": "pending", "episode": None}]
    assert [alerts.can_be_acknowledged(ALERT | case) for case in cases] == [True, False, False]
    muted = ALERT | {"muted": "inhibited"}
    assert alerts.count([muted], channels=True) == "1, 1 of them without notification"
    assert "no channel is configured" in alerts.count([muted], channels=False)


# --- Correction ---

CONTROL: dict[str, Any] = {"phase": "idle", "mode": "suggest", "stopped": False, "problem": None, "waiting": None, "config": {"is_upper": 5.0}, "from_step": None}  # fmt: skip
AT: dict[str, Any] = {"time": T0, "severity": "info", "details": {}}
DECIDED: list[dict[str, Any]] = [
    AT | {"name": "switched_on", "step": 10, "words": "on", "details": {"from_step": 15, "by": "<b>Ada</b>"}},
    AT | {"name": "acknowledged", "step": 15, "words": "applies"},
    AT | {"name": "rolled_back", "step": 40, "words": "too much"},
    AT | {"name": "switched_on", "step": 60, "words": "on again"},
]


def test_switches_follow_the_state_and_what_is_dangerous_is_said_to_be() -> None:
    def offered(**state: Any) -> list[tuple[str, str, bool]]:
        return [(command, why, danger) for command, _, _, why, danger in correction.switches(CONTROL | state)]

    assert offered() == [("on", "", False), ("armed", "", False), ("stop", "", True)]
    assert [each[0] for each in offered(phase="applied", mode="armed")] == ["off", "suggest", "stop"]
    assert offered(stopped=True)[0] == ("on", "the kill switch is set", False)
    assert offered(stopped=True)[2][0] == "release"
    assert list(correction.notices(CONTROL | {"stopped": True, "waiting": "x."})) == [
        ("The kill switch is set: no correction applies until it is released.", "critical"), ("No correction: x.", "warning"),
    ]  # fmt: skip


def test_the_audit_says_who_when_and_where() -> None:
    lines = list(reversed(correction.audit(DECIDED, "r")))
    assert [line.cells[3] for line in lines] == ["<b>Ada</b>", "the trainer", "the controller", "the controller"]
    assert lines[0].cells[2] == link("10", "", {"run": "r", "steps": "0:30"})


def test_an_effect_says_how_sure_it_is_and_what_is_unknown() -> None:
    side = {"value": 0.5, "low": 0.4, "high": 1.6, "steps": 50}
    usual = {"name": "ess", "words": "ESS", "unit": "", "before": side, "after": side, "sure": False, "factor": False}
    change = {"value": -0.1, "low": -0.2, "high": 0.05, "steps": 50}
    grown = {"value": 3.0, "low": 2.0, "high": 4.5, "steps": 50}
    assert list(changed(usual | {"change": change})) == [
        "0.5 (0.4 to 1)", "0.5 (0.4 to 1)", "−0.1 (−0.2 to +0.05): no significant change",
    ]  # fmt: skip
    for case, said in (
        ({"change": grown, "sure": True, "factor": True}, "×3 (×2 to ×4.5)"),
        ({"change": None, "name": "masked", "before": None}, "–"),
        ({"change": None, "after": None}, "– (one side is not measured)"),
    ):
        assert list(changed(usual | case))[2] == said


# --- Diagnosis ---


def check(name: str, outcome: str, reference: str | None = None) -> Check:
    settings = tuple(
        Setting(f"engine.{at}", True, at, "unset: default of vLLM 1", True, 9) for at in range(parity.MOST + 2)
    )
    return Check(name, "semantic", "engine.0 = 1", outcome, reference, "because", "do this", settings)


def test_what_is_not_met_comes_first_with_its_fix_then_what_is_not_known() -> None:
    checks = (check("fine", "met"), check("open", "unknown"), check("broken", "violated"))
    found = Parity("r", "the recipe", "unknown", ("so",), checks, (), ())
    reasons, requirements = parity.sections(found)
    (table,) = requirements.parts
    assert [(row[0], row[3], row[4]) for row in table.rows] == [
        ("broken (semantic)", "NOT MET", "because; do this"), ("open (semantic)", "unknown", "because; do this"), ("fine (semantic)", "met", ""),
    ]  # fmt: skip
    assert table.rows[0][1].endswith("; 2 more")
    assert reasons.parts == [Points(("so",))]
    assert parity.sentence(found) == "cannot determine whether r is at parity with the recipe"


# --- Mismatch ---


def test_slices_and_tags_beyond_the_limit_are_said() -> None:
    table = pa.table({"slice": [f"s{at}" for at in range(mismatch.MOST_SLICES + 1)]})
    sliced = Sliced(Seen(5, 9, whole=False), 64, table, table, table)
    tags = [f"t{at}" for at in range(MOST_TAGS + 1)]
    said = " ".join(mismatch.slice_notes(sliced, Seen(0, 9), "weight_lag", tags))
    assert "64 sequences of steps 5–9: the newest in view" in said
    assert "1 more slices are not shown" in said
    assert f"more than {MOST_TAGS} tags" in said
    unnamed = replace(sliced, table=pa.table({"slice": pa.array([None], pa.string())}))
    assert "record spans" in " ".join(mismatch.slice_notes(unnamed, Seen(5, 9), "weight_versions", tags[1:]))


def test_the_newest_steps_in_view_are_as_many_as_the_limit_has_room_for_and_at_least_one() -> None:
    frame = pl.DataFrame({"step": [0, 1, 2, 4], "sequences": [4.0, 4.0, None, 4.0]})
    seen = Seen(0, 4)
    assert [newest(frame, seen, "sequences", most).first for most in (3, 4, 7, 8, 12)] == [4, 2, 2, 1, 0]
    assert [newest(frame, seen, "sequences", most).whole for most in (11, 12)] == [False, True]
    assert newest(frame, Seen(0, 1, whole=False), "sequences", 8) == Seen(0, 1, whole=False)


def test_profiles_are_without_the_bucket_of_broken_tokens() -> None:
    names = ("log_ratio_mean", "logprob_abs_diff_mean", "k3_kl")
    rows = [("1", 10, 0.1, 0.1, 0.01), ("2", 30, 0.2, 0.2, 0.02), ("broken", 5, None, None, None)]
    table = pa.Table.from_pylist([dict(zip(("label", "tokens", *names), row, strict=True)) for row in rows])
    assert [(row["bucket"], row["tokens"]) for row in mismatch.profile_rows(table)] == [("1", 0.25), ("2", 0.75)]


def test_metrics_say_why_they_have_no_value_and_what_is_broken() -> None:
    frame = pl.DataFrame(
        {
            "step": [0, 1, 2],
            "backend.k3_kl": [1e-3, 1e-3, 4e-3],
            "backend.coverage": [1.0, 1.0, 0.98765],
            "backend.nonfinite_tokens": [0.0, 0.0, 7.0],
        }
    )
    rows = {row["key"]: row for row in mismatch.metric_rows(frame, "backend", Seen(0, 2), "").to_dicts()}
    assert (rows["k3_kl"]["value"], rows["k3_kl"]["against usual"]) == ("0.004", "4.00×")
    assert rows["reward"]["value"] is None
    assert rows["reward"]["against usual"]
    assert mismatch.broken_of(frame, Seen(0, 2)) == [
        "backend: incomplete at 1 step in view, down to 98.76 % of the tokens; non-finite tokens: 7"
    ]
    assert mismatch.why_unmeasured(frame, "update").startswith("not measured: needs current_logprobs")
    assert mismatch.why_unmeasured(frame, "backend") == ""
    assert {mismatch.key_of(metric, "backend") for metric in mismatch.CATALOG} - {None} <= set(KEYS)


# --- Weights ---

ENGINE = Lane(
    source="engine", replica="left", updates=17, newest_version="16", behind=0, missed=0, usual_stride=1, all_skipped=0,
    all_backwards=0, all_unloaded=0, all_reloads=0, cleared=0, kept=16, unknown=0, usual_delay=0.03, longest_delay=0.5, usual_pause=0.04, longest_pause=0.6,
    pauses=["keep"],
)  # fmt: skip
TRAINER = replace(ENGINE, source="trainer", replica=None, kept=0, pauses=None, usual_delay=None, usual_pause=None)


@pytest.mark.parametrize(
    ("lanes", "words", "tone"),
    [
        ([TRAINER], "Only the trainer has recorded updates", "unknown"),
        ([TRAINER, ENGINE], "keeps up with the newest weights, version `16`", ""),
        ([TRAINER, ENGINE, replace(ENGINE, replica="right", newest_version="9", behind=4)], "4 versions behind", "warning"),
        ([TRAINER, replace(ENGINE, newest_version=None, behind=None)], "never reported its weight version", "warning"),
        ([TRAINER, ENGINE, replace(ENGINE, replica="right", newest_version="1", behind=15, missed=15)], "1 of 2 engines: engine right stopped updating", "critical"),
    ],
)  # fmt: skip
def test_the_first_line_says_who_does_not_keep_up(lanes: list[Lane], words: str, tone: str) -> None:
    said, found = weights.status(lanes)
    assert (words in said, found) == (True, tone), said


def test_tokens_around_a_switch_stand_beside_those_of_sequences_without_one() -> None:
    def group(distance: int | None, mean: float | None, **more: Any) -> dict[str, Any]:
        known = {"logprob_abs_diff_mean": mean, "logprob_abs_diff_error": 0.01, "broken": 0}
        return {"distance": distance, **known, **more}

    rows = [group(0, 0.1), group(-1, 0.4, logprob_abs_diff_error=None), group(None, 0.1), group(1, None)]
    chart = weights.switch_chart([*rows, group(2, 0.2, broken=7)], LIGHT)
    assert chart is not None
    assert (chart.note, chart.zooms, chart.axis) == ("7 broken tokens left out", False, "tokens after the switch")
    band, line, mark = chart.figure["data"]
    assert line["x"]["dtype"] == "i4"
    assert band["fill"] == "toself"
    assert mark["x"] == [0.0]
    assert "between 0.1 and 0.4" in chart.alt
    assert "sequences without a switch" in str(chart.figure["layout"]["annotations"])
    assert weights.switch_chart([group(None, 0.1)], LIGHT) is None


# --- Compare ---


def history(label: str, k3: float, reward: float, *, rises: float = 1.0) -> History:
    noise = np.random.default_rng(len(label)).normal(0, 0.05, 120)
    steps = tuple(range(120))
    grows = np.where(np.arange(120) > 100, rises, 1.0)
    trends = {
        "backend.k3_kl": {at: k3 * float(np.exp(noise[at]) * grows[at]) for at in steps},
        "reward": {at: reward + float(noise[at]) for at in steps},
    }
    return History(label=label, steps=steps, tokens={at: 100.0 * (at + 1) for at in steps}, trends=trends, facts={})


def test_verdicts_come_with_final_values_first_and_say_where_these_say_the_opposite() -> None:
    runs_ = (history("worse", 1e-1, 0.2), history("fine", 1e-3, 0.8), history("turned", 1e-4, 0.8, rises=1000.0))
    found = compared(runs_, history("base", 1e-3, 0.8), metrics=("backend.k3_kl", "reward", "entropy"))
    assert [compare.verdict_of(pairing, found)[1] for pairing in found.pairings][:2] == ["bad", "good"]
    assert "Final reward of the common steps 0.2" in compare.verdict_of(found.pairings[0], found)[0]
    k3 = [pairing.metrics[0] for pairing in found.pairings]
    assert [compare.verdict_words(each).partition(",")[0] for each in k3[:2]] == ["worse", "same"]
    assert [bool(compare.turned(each)) for each in k3] == [False, False, True]
    chart = compare.chart_of(found, "backend.k3_kl", LIGHT)
    assert chart is not None
    assert [row["title"] for row in chart.rows] == ["K3", "ratio to the baseline"]
    assert compare.chart_of(found, "entropy", LIGHT) is None


# --- Runs ---


def test_a_sparkline_is_in_decades_and_a_rise_of_64_times_is_seen() -> None:
    flat, risen = runs.decades([1e-3, 1.1e-3] * 30), runs.decades([1e-3] * 50 + [6.4e-2] * 10)
    assert max(flat) - min(flat) < 0.05
    assert max(risen) - min(risen) > 0.85
    assert runs.decades([]) == runs.decades([0.0]) == []


# --- Tokens ---

SEQUENCE: dict[str, Any] = {
    "step": 2, "place": 1, "sample_id": "a/1", "group_id": "a", "tokens": 3, "broken": 1, "n_total": 5, "k3_kl": 0.2, "share": 0.25,
    "logprob_abs_diff_mean": 0.1, "log_ratio_mean": 0.1, "log_ratio_min": -1.0, "log_ratio_max": 1.0, "reward": None, "rank": 0,
    "replica": "r0", "trainer_weight_version": "3", "spans": [{"start": 0, "end": 4, "version": "2"}], "cached_prefix_tokens": 0,
    "finish_reason": "stop", "rollout_source": "joined", "alignment": "masked", "tags": [("environment", "math")], "raw_kept": True,
    "segment_id": "s", "row": 0,
}  # fmt: skip
SIDES: list[Any] = [{"rollout_source": "joined", "alignment": "masked", "sequences": 4, "kept": 4, "reduced": 0}]


def step_of(**fields: Any) -> StepTokens:
    given = {"step": 20, "pair": "backend", "sides": SIDES, "sequences": [SEQUENCE], "chosen": SEQUENCE, "asked": None}
    return StepTokens(**{**given, "says_correction": False, "correction": None, **fields})


def strip() -> tokens.Strip:
    r = np.array([NAN, -1.0, -2.0, NAN, -1.0])
    known = np.array([False, True, True, True, True])
    sides = {
        "rollout": Side(r, known),
        "trainer": Side(np.array([-1.0, -1.5, -0.5, -1.0, -1.0]), np.ones(5, bool)),
        "current": Side(np.full(5, NAN), np.zeros(5, bool)),
    }
    made = Tokens(
        token_id_N=np.arange(5), mask_N=np.array([False, True, True, True, True]), sides=sides, entropy_N=np.full(5, NAN),
        advantage_N=np.ones(5), version_N=np.array([-1, 0, 0, 1, 1]), versions=("2", "<b>3</b>"),
    )  # fmt: skip
    done = tokens.Corrected("MIS", preset("mis"), effect(preset("mis"), made))
    return tokens.Strip(made, pair_tokens(made, "backend"), [done], {1: "<script>\n", 2: "\u202e"})


@pytest.mark.parametrize(
    ("k3", "broken", "kept", "first"),
    [
        ([0.1, 0.3, 0.2], [0.0] * 3, [4] * 3, 10),
        ([0.1, 0.3, 0.2], [1.0, 0.0, 2.0], [4] * 3, 20),  # broken tokens are in no K3
        ([0.1, 0.3, 0.2], [0.0] * 3, [4, 0, 4], 20),
        ([NAN, NAN], [NAN, NAN], [4, 4], 10),
        ([9.0, *[0.1] * 50], [0.0] * 51, [4] * 51, 500),  # the newest of the recent ones that are as bad
        ([], [], [], None),
    ],
)
def test_the_worst_recent_step_with_raw_tokens_is_suggested(
    k3: list[float], broken: list[float], kept: list[int], first: int | None
) -> None:
    steps = StepList(np.arange(len(k3)) * 10, np.array(k3), np.array(broken), np.array(kept))
    assert steps.suggested() == first
    if k3:
        assert tokens.bars("r", steps, 10, "backend", theme=LIGHT, window=None).figure["data"]


def test_what_has_to_be_known_before_anything_is_believed() -> None:
    assert tokens.notes(step_of(), strip()) == []
    sides = [{**SIDES[0], "kept": 1, "reduced": 2}]
    said = " ".join(tokens.notes(step_of(sides=sides, chosen=SEQUENCE | {"raw_kept": False}), None))
    assert "kept for 1 of 4 sequences: 2 were recorded as statistics only; 1 were removed" in said
    assert "Its statistics are above" in said
    assert "no sequence called <i>x</i>; showing the worst" in " ".join(
        tokens.notes(step_of(asked="<i>x</i>"), strip())
    )
    unmeasured = SEQUENCE | dict.fromkeys(("share", "broken", "k3_kl"))
    assert "record current_logprobs" in " ".join(
        tokens.notes(step_of(pair="update", sequences=[unmeasured], chosen=unmeasured), strip())
    )
    assert "cannot be recomputed" in " ".join(tokens.notes(step_of(says_correction=True), strip()))
    assert "No sequences were recorded" in " ".join(tokens.notes(step_of(sequences=[], chosen=None), None))


def test_facts_leave_nothing_unknown_looking_known() -> None:
    facts = dict(tokens.facts_of(SEQUENCE, strip()))
    assert facts["tokens"] == "4 trained on, of 5"
    assert facts["left out of every value"] == "1 broken"
    assert facts["ρ of the sequence"] == "2.72 over 3 measured tokens"
    assert "reward" not in facts
    unknown = dict(tokens.facts_of(SEQUENCE | {"spans": None, "share": None}, None))
    assert (unknown["weights of the engine"], unknown["share of the step's K3"]) == ("unknown", "–")
    assert unknown["left out of every value"] == "1 broken or missing"


def test_a_broken_token_never_looks_healthy_and_text_stays_text() -> None:
    step, made = step_of(), strip()
    drawn = tokens.cells(made, step, tokens.describe_all(made, "backend"), 3, theme=LIGHT)
    assert [cell[2] for cell in drawn["cells"]] == ["masked", "trained", "trained", "broken", "trained"]
    assert [cell[0] for cell in drawn["cells"]][1:3] == ["<script>⏎", "⟨U+202E⟩"]
    assert drawn["cells"][3][5] == "NaN"
    assert "lp-switch" in drawn["cells"][3][3]
    assert drawn["worst"][0] == 3
    said = dict(tokens.describe(made, step, 3))
    assert said["state"].startswith("broken")
    assert (said["d = log ρ"], said["entropy"], said["weights"]) == ("–", "not recorded", "engine <b>3</b>, trainer 3")
    assert dict(tokens.describe(made, step, 0))["state"].startswith("before the first token")
    head, lines = tokens.worst_table(made, step)
    assert (lines[0].tone, lines[0].cells[head.index("state")]) == ("critical", said["state"])


def test_every_state_and_rule_has_words() -> None:
    for pair, sides in {"backend": ("rollout", "trainer"), "update": ("trainer", "current")}.items():
        described = token_text.states(pair)
        assert len(described) == len(STATES)
        assert {each["side"] for each in described} == {"", *sides}
    assert set(token_text.RULES) == set(Rule)
    assert [rule for rule, words in token_text.RULES.items() if words.startswith("dropped")] == list(DROPPED)


# --- Data ---


def test_limits_and_what_waits_are_said_also_where_they_are_not_known() -> None:
    assert page.limits({}).startswith("unknown")
    assert page.limits({"max_bytes": None, "max_age_seconds": None}).startswith("none")
    assert page.limits({"max_bytes": 4096, "max_age_seconds": 86400.0}).startswith("4 KiB in all, no older than 1 d")
    assert page.waiting({"segments": 3, "bytes": 5000, "oldest_seconds": 62.0}).startswith("3 files, 4.88 KiB")
    assert page.waiting({"segments": 0, "unreadable": 2}).startswith("nothing; 2 ")
    assert page.waiting(None) == "–"


def test_a_file_set_aside_says_why_and_what_to_do() -> None:
    file = {"path": "quarantine/1.arrow", "run": "r", "reason": "truncated", "bytes": 300, "moved_at": T0}
    line = page.file_line(file)
    assert str(line.cells[2]).startswith("truncated: the file is incomplete")
    assert "replace the file in quarantine" in str(line.cells[3])
    assert (line.tone, page.file_line(file | {"reason": "foreign"}).tone) == ("critical", "warning")
    assert page.FILES == 100  # of more it is said that these are the newest


def asked(ask: Any) -> query.RunningQuery:
    running = query.RunningQuery(ask)
    running.wait(90)
    assert not running.running
    return running


def test_a_result_is_numbers_and_text() -> None:
    table = pa.table({"n": [1, None], "word": ["<b>x</b>", "a,b"], "list": [list(range(100)), None]})
    drawn = asked(lambda: table).rows
    assert drawn["n"].to_list() == [1, None]
    assert drawn["word"][0] == "<b>x</b>"
    assert drawn["list"].to_list() == ["[0, 1, 2, 3, 4, 5, 6, 7, … 100 in all]", None]
    twice = pa.Table.from_arrays([pa.array([1]), pa.array(["b"])], names=["a", "a"])
    assert query.frame_of(twice).columns == ["a", "a (2)"]


@pytest.mark.parametrize("allowed", list(Permission))
def test_sql_runs_for_who_may_act_and_the_others_are_told_why_not(
    allowed: Permission, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOGPROBE_HOME", "/nowhere")
    table = pa.table({"n": [4711]})
    answering = SimpleNamespace(query=lambda *_, **__: table.replace_schema_metadata({MORE: b""}))
    monkeypatch.setattr(page, "connect", lambda _: nullcontext(answering))
    done = asked(page._asking("SELECT 1", allowed))
    if allowed is Permission.GRANTED:
        assert (done.rows["n"].to_list(), done.more) == ([4711], True)
    else:
        assert (done.rows, done.refusal) == (None, f"nothing was run: {allowed.value}")

    def refuse() -> pa.Table:
        raise QueryError("DROP is refused\nsecond line")

    assert asked(refuse).refusal == "DROP is refused"


def test_what_show_says_is_drawn_as_text(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[str] = []
    monkeypatch.setattr("streamlit.html", lambda markup, **_: drawn.append(str(markup)))
    parts = [
        Facts([("node", "<b>\x1b[31m"), ("unknown", None)]),
        Points(["<i>\x1b[31m"]),
        Table(["node"], [["<s>\x1b[31m"], [None]], "nodes"),
        Item(1, "<u>\x1b[31m", [("Fix", "<b>\x1b[31m")]),
    ]
    tell([Section("records", parts)])
    whole = "".join(drawn)
    assert "\x1b" not in whole
    assert not re.search("<[bisu]>", whole)
    assert [each in whole for each in ("Records", "nodes", "–", "unknown")] == [True, True, True, False]
