"""What the Compare page makes of an address and of a comparison; runs are made up, no store is needed."""

from __future__ import annotations

import json
from base64 import b64decode
from dataclasses import replace
from datetime import UTC, datetime

import numpy as np
import pytest

from logprobe.app.dashboard.data.comparing import PACE, Comparer
from logprobe.app.dashboard.data.stale_cache import StaleCache
from logprobe.app.dashboard.elements.links import in_address
from logprobe.app.dashboard.pages.compare import (
    MOST,
    SHOWN,
    Choice,
    choice_of,
    chooser,
    compare_data,
    values_of,
)
from logprobe.app.dashboard.theme import LIGHT
from logprobe.app.runs import Run
from logprobe.monitor.compare import Comparison, History, Place, compared
from logprobe.monitor.judging.result import Growth
from logprobe.monitor.liveness import judge
from logprobe.monitor.metrics.catalog import KEYS

KNOWN = [f"run-{number}" for number in range(9)]
METRICS = ("backend.k3_kl", "reward", "weight_lag_mean")


def history(label: str, k3: float, reward: float, *, lag: float = 0.0, facts: dict | None = None) -> History:
    noise = np.random.default_rng(len(label)).normal(0, 0.05, 120)
    steps = tuple(range(120))
    return History(
        label=label,
        steps=steps,
        tokens={step: 100.0 * (step + 1) for step in steps},
        trends={
            "backend.k3_kl": {step: k3 * float(np.exp(noise[step])) for step in steps},
            "reward": {step: reward + float(noise[step]) for step in steps},
            "weight_lag_mean": dict.fromkeys(steps, lag),
        },
        facts=facts or {},
    )


def comparison(*runs: History) -> Comparison:
    return compared(runs, history("base", 1e-3, 0.8, facts={"engine.dtype": ("float32",)}), metrics=METRICS)


def choice(**address: str | None) -> Choice:
    return choice_of(KNOWN, "run-1", address)


def run(name: str, revision: int = 1) -> Run:
    now = datetime.now(UTC)
    liveness = judge(now=now, last_record=now, median_step_seconds=1.0, writers=[])
    return Run(name, liveness, 120, 119, 1, 1, revision, now)


def test_the_run_that_is_open_is_compared_until_others_are_named() -> None:
    assert choice(baseline="run-0") == Choice("run-0", ("run-1",))
    assert choice(baseline="run-0", runs="run-2,run-3,run-2").runs == ("run-2", "run-3")
    assert choice().baseline is None
    assert choice_of(["a", "b"], "a", {}) == Choice("b", ("a",))  # of two runs the other one


def test_a_comma_may_be_part_of_a_name() -> None:
    names = ["lr=1e-5,seed=1", "100%", "100%2C"]
    assert choice_of([*names, "base"], "base", {"baseline": "base", "runs": in_address(names)}).runs == tuple(names)


def test_what_cannot_be_had_is_said_and_left_out() -> None:
    found = choice(baseline="run-0", runs="nope,run-2", align="luck", metric="reward,k3")
    assert (found.runs, found.axis, found.shown) == (("run-2",), "step", ("reward",))
    assert found.notes == (
        "There is no run called nope here.", "There is no metric k3.", "Runs cannot be aligned by luck.",
    )  # fmt: skip
    many = choice(baseline="run-0", runs=",".join(KNOWN))
    assert many.runs == tuple(KNOWN[1 : 1 + MOST])
    assert len(many.notes) == len(KNOWN) - 1 - MOST
    thirteen = [key for key in KEYS if key.startswith("backend.")][:13]
    found = choice(baseline="run-0", metric=",".join(thirteen))
    assert (list(found.shown), found.notes) == (
        thirteen[:12],
        (f"{thirteen[12]} is left out: there are at most 12 charts.",),
    )


def test_a_baseline_is_not_compared_with_itself() -> None:
    found = choice(baseline="run-1")
    assert found.runs == ()
    assert "at least one run" in chooser(found, [run(name) for name in KNOWN])["missing"]
    assert "needs two" in chooser(choice_of(["a"], "a", {}), [run("a")])["missing"]


def test_every_metric_with_a_chart_is_judged() -> None:
    # As other pages write it, and in full
    assert choice(metric="chi2_seq,backend.chi2_seq").shown == ("backend.chi2_seq",)
    assert "backend.chi2_seq" in choice(metric="backend.chi2_seq").metrics
    assert choice().shown == SHOWN


def test_verdicts_come_with_their_reason_and_their_size() -> None:
    found = comparison(history("worse", 1e-1, 0.2, lag=1.0), history("fine", 1e-3, 0.8))
    data = compare_data(found, Choice("base", ("worse", "fine"), shown=METRICS), LIGHT)
    assert [item["tone"] for item in data["verdicts"]] == ["bad", "good"]
    assert data["verdicts"][0]["note"].startswith("final reward of the common steps 0.2")
    assert data["verdicts"][0]["note"].endswith("120 of 120 steps in common with base")
    k3, reward, lag = data["matrix"]
    assert [cell["verdict"] for cell in k3["cells"]] == ["worse", "same"]
    assert 90 < float(k3["cells"][0]["change"].removesuffix("×")) < 110
    assert "times the baseline" in k3["cells"][0]["reason"]
    assert reward["cells"][0]["change"].startswith("0.2")
    assert lag["cells"][0]["change"] == "+1"  # of a baseline of 0 there is no multiple
    assert k3["cells"][1]["change"] == ""
    json.dumps(data)


@pytest.mark.parametrize(
    ("steps", "growth", "tone", "ending"),
    [
        (120, Growth("critical", since_step=90), "good", ""),  # nothing beyond: the verdicts are of the whole run
        (160, Growth("healthy"), "good", "; it goes on for 40 steps that are not compared"),
        (160, Growth("critical", since_step=130), "bad", "; it goes on for 40 steps that are not compared: critical since step 130"),
        (160, Growth("growing", since_step=None), "bad", "; it goes on for 40 steps that are not compared: growing"),
    ],
)  # fmt: skip
def test_what_comes_after_the_common_steps_is_told(steps: int, growth: Growth, tone: str, ending: str) -> None:
    base = history("base", 1e-3, 0.8)
    trends = {name: {step: trend[step % 120] for step in range(steps)} for name, trend in base.trends.items()}
    positions = tuple(range(steps))
    run = replace(
        base, label="run", steps=positions, tokens=dict.fromkeys(positions, 100.0), trends=trends, growth=growth
    )
    (verdict,) = compare_data(compared([run], base, metrics=METRICS), Choice("base", ("run",), shown=METRICS), LIGHT)[
        "verdicts"
    ]
    assert verdict["tone"] == tone
    assert verdict["words"] == f"the same in 3 of 3 metrics{ending}"


def test_k3_that_was_high_from_the_first_step_is_not_just_steady() -> None:
    runs = [replace(history(name, k3, 0.8), growth=Growth("healthy")) for name, k3 in (("high", 1e-1), ("fine", 1e-3))]
    first, *rows = compare_data(comparison(*runs), Choice("base", ("high", "fine"), shown=METRICS), LIGHT)["onsets"][
        "rows"
    ]
    assert first[1] == "is the baseline"
    assert [row[1:3] for row in rows] == [["at step 0", "steady, but high from the first step"], ["does not", "steady"]]


def test_charts_have_every_run_and_the_ratio_within_its_band() -> None:
    found = comparison(history("worse", 1e-1, 0.2), history("fine", 1e-3, 0.8))
    k3, _, lag = compare_data(found, Choice("base", ("worse", "fine"), shown=METRICS), LIGHT)["charts"]
    assert [line["run"] for line in k3["lines"]] == [0, 1, 2]
    assert k3["log"]
    worse, fine = (line["blocks"] for line in k3["ratio"]["lines"])
    assert all(value > high for _, value, _, high in worse)
    assert all(low <= value <= high for _, value, low, high in fine)
    assert lag["ratio"]["lines"][1]["blocks"] == []
    assert lag["ratio"]["missing"] == "no ratio: the baseline is 0"


def test_what_nobody_measured_is_no_line_and_says_what_is_missing() -> None:
    found = compared([history("a", 1e-3, 0.8)], history("base", 1e-3, 0.8), metrics=(*METRICS, "update.k3_kl"))
    (chart,) = compare_data(found, Choice("base", ("a",), shown=("update.k3_kl",)), LIGHT)["charts"]
    assert chart["lines"] == []
    assert chart["missing"] == "not measured, needs current_logprobs"


def test_values_have_a_row_for_every_step_wherever_it_stands() -> None:
    ours = history("run", 1e-3, 0.5)
    ours = replace(
        ours, tokens=dict.fromkeys(ours.steps, 7.0), trends={"reward": {0: 0.25, 3: 0.5}, "entropy": {3: 2.0}}
    )
    found = comparison(ours)
    table = values_of(found, ("reward", "entropy")).to_pylist()
    assert [row for row in table if row["run"] == "run"] == [
        {"run": "run", "step": 0, "reward": 0.25, "entropy": None},
        {"run": "run", "step": 3, "reward": 0.5, "entropy": 2.0},
    ]
    by_tokens = values_of(replace(found, axis="tokens"), ("reward",)).to_pylist()
    assert [list(row.values()) for row in by_tokens if row["run"] == "run"] == [
        ["run", 0, 7.0, 0.25],
        ["run", 3, 7.0, 0.5],
    ]
    assert sum(row["run"] == "base" for row in by_tokens) == 120


def test_settings_stand_side_by_side_those_of_parity_first() -> None:
    other = {"engine.dtype": ("bfloat16",), "trainer.lr": (1e-4,)}
    found = comparison(
        history("a", 1e-3, 0.8, facts=other), history("b", 1e-3, 0.8, facts={"engine.dtype": ("float32",)})
    )
    settings = compare_data(found, Choice("base", ("a", "b"), shown=METRICS), LIGHT)["settings"]
    assert settings["head"] == ["setting", "base", "a", "b", "required for parity"]
    assert settings["rows"] == [
        ["engine.dtype", "float32", "bfloat16", "", "yes"],
        ["trainer.lr", "not recorded", "0.0001", "", ""],
    ]


def test_what_was_compared_is_compared_anew_only_when_a_run_has_changed() -> None:
    reads: list[str] = []

    class Nothing:
        def read(self, name: str, /, **params: object) -> object:
            reads.append(f"{name} {params['run']}")
            raise RuntimeError

    comparer = Comparer(lambda name: Place(name, name, Nothing()))
    for each in ("a", "b"):
        comparer._histories.get(((each, 1, None), METRICS), None, lambda each=each: history(each, 1e-3, 0.8))
    comparer._comparisons = StaleCache(2, rest=0, clock=lambda: 0.0)  # nothing takes any time: nothing is put off
    first = comparer.compare((run("a"),), run("b"), axis="step", metrics=METRICS)
    assert comparer.compare((run("a"),), run("b"), axis="step", metrics=METRICS).value is first.value
    with pytest.raises(RuntimeError):
        comparer.compare((run("a", 2),), run("b"), axis="step", metrics=METRICS)
    assert reads == ["app_steps a"]


def test_what_takes_long_is_made_anew_less_often_and_says_of_what_state_it_is() -> None:
    clock, took = [0.0], 2.0

    def make(value: str) -> str:
        clock[0] += took
        return value

    paced = StaleCache(2, rest=0, times=PACE, clock=lambda: clock[0])
    assert paced.get("x", 1, lambda: make("one")).value == "one"
    clock[0] += 19
    assert paced.get("x", 2, lambda: make("two")).state == 1
    clock[0] += 2
    assert paced.get("x", 2, lambda: make("two")).value == "two"
    assert paced.get("x", 2, lambda: make("three")).value == "two"


def test_recent_values_are_kept_and_the_oldest_forgotten() -> None:
    made: list[int] = []
    recent = StaleCache(2)
    for key in (1, 2, 1, 3, 1, 2):
        assert recent.get(key, None, lambda key=key: made.append(key) or key).value == key
    assert made == [1, 2, 3, 2]


def test_lines_are_thinned_and_keep_their_ends() -> None:
    long = History("long", tuple(range(5000)), trends={"reward": {step: float(step % 7) for step in range(5000)}})
    found = compared([long], long, metrics=("reward",))
    (chart,) = compare_data(found, Choice("long", ("long",), shown=("reward",)), LIGHT)["charts"]
    x = chart["lines"][0]["x"]
    assert x["dtype"] == "f4"
    values = np.frombuffer(b64decode(x["bdata"]), "<f4")
    assert len(values) <= 1600
    assert (values[0], values[-1]) == (0.0, 4999.0)
