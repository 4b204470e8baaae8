"""Parity on the recorded runs, recipes of one's own, and whether trajectories leave only where they do."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from growth_runs import HEALTHY, Trend, series

from logprobe.collectors.errors import ConfigurationError
from logprobe.monitor.home import Home
from logprobe.monitor.judging.parity import Parity, compare
from logprobe.monitor.judging.parity import recipe as parity_recipe
from logprobe.monitor.judging.parity.facts import facts_of
from logprobe.monitor.judging.parity.recipe import Band, Requirement
from logprobe.monitor.judging.parity.trajectories import follow
from logprobe.monitor.store.store import Store

K3 = Band(metric="backend.k3_kl", label="K3", factor=1.5)


@pytest.fixture(scope="module")
def recorded(recorded_runs: Path) -> Iterator[Store]:
    with Store.open(Home(recorded_runs), read_only=True) as store:
        yield store


def unmet(parity: Parity) -> list[str]:
    return [check.name for check in parity.checks if check.verdict != "at_parity"]


FAULTS = [
    "log-probs of the distribution sampled from",
    "prefix cache off, or cleared at every update",
    "no request goes on with keys and values of old weights",
]


@pytest.mark.parametrize(
    ("run", "reference", "verdict", "missed", "trajectories"),
    [
        ("v1-fixed", "v0-reference", "at_parity", [], 5),
        ("v1-initial", "v0-reference", "not_at_parity", [*FAULTS, "engine.logprobs_mode as the reference"], 5),
        ("v0-reference", None, "at_parity", [], 0),  # the shipped recipe judges the configuration
        ("v1-initial", None, "not_at_parity", FAULTS, 0),
        ("v1-initial", "v1-initial", "at_parity", [], 5),  # the same fault is no difference
        ("late-growth", "v0-reference", "not_at_parity", ["sampling.temperature as the reference"], 5),
    ],
)
def test_recorded_runs(
    recorded: Store, run: str, reference: str | None, verdict: str, missed: list[str], trajectories: int
) -> None:
    parity = compare(recorded, run, reference=reference)
    assert (parity.verdict, unmet(parity), len(parity.trajectories)) == (verdict, missed, trajectories)
    assert json.loads(json.dumps(parity.document(), allow_nan=False))["verdict"] == verdict
    if verdict == "at_parity":
        assert not parity.reasons
        assert not parity.differences
        assert {trajectory.verdict for trajectory in parity.trajectories} <= {"tracks"}


def test_the_first_attempt_leaves_the_reference_where_it_does(recorded: Store) -> None:
    parity = compare(recorded, "v1-initial", reference="v0-reference")
    left = {trajectory.label: trajectory.leaves_step for trajectory in parity.trajectories}
    assert left == {"clip rate": 0, "KL new–old": 0, "K3": 0, "entropy": 20, "reward": 20}
    assert "raw_logprobs" in parity.reasons[0]
    assert "sampling.temperature = 0.7" in compare(recorded, "late-growth", reference="v0-reference").reasons[0]


def test_a_run_without_any_configuration_cannot_be_told_to_be_at_parity(store: Store) -> None:
    parity = compare(store, "nobody")
    assert parity.verdict == "unknown"
    assert all("not recorded" in reason for reason in parity.reasons)
    assert compare(store, "nobody", reference="no other").verdict == "unknown"


def test_facts_hold_every_value_of_engines_that_differ(store: Store) -> None:
    documents = [
        {"summary": {"dtype": dtype, "logprobs_mode": "processed_logprobs"}} for dtype in ("bfloat16", "float32")
    ]
    record(store, [("engine_config", document) for document in documents], ("trainer_config", {"dtype": "bf16"}))
    facts = facts_of(store, "run")
    assert set(facts["engine.dtype"]) == {"bfloat16", "float32"}
    assert facts["engine.logprobs_mode"] == ("processed_logprobs",)
    assert facts["trainer.dtype"] == ("bfloat16",)
    assert facts["trainer.head_dtype"] == ("bfloat16",)
    assert "engine.head_dtype" not in facts
    assert compare(store, "run", reference="run").verdict == "unknown"  # both lack the same; no trend to compare
    one_dtype = next(item for item in parity_recipe.shipped().requirements if item.name == "one dtype on both sides")
    assert one_dtype.outcome(facts) == "violated"


def record(store: Store, *rows: Any) -> None:
    flat = [row for entry in rows for row in (entry if isinstance(entry, list) else [entry])]
    with store.transaction() as cursor:
        for number, (kind, document) in enumerate(flat):
            cursor.execute(
                "INSERT INTO config_records (run, time, fingerprint, kind, document) VALUES ('run', now(), ?, ?, ?)",
                [f"f{number}", kind, json.dumps(document)],
            )


@pytest.mark.parametrize(
    ("facts", "outcome"),
    [
        ({}, "unknown"),
        ({"a": (1,)}, "met"),
        ({"a": (1, 2)}, "unknown"),
        ({"a": (2,)}, "unknown"),
        ({"a": (2,), "b": (None,)}, "violated"),
        ({"a": (2,), "b": (True,)}, "unknown"),
        ({"a": (2,), "b": (True,), "c": (5,), "d": (5,)}, "met"),
        ({"a": (2,), "b": (True,), "c": (5,), "d": (6,)}, "violated"),
        ({"a": (2,), "b": (False,), "c": (5,), "d": (5,)}, "violated"),
    ],
)
def test_a_requirement_is_met_violated_or_unknown(facts: dict[str, tuple[Any, ...]], outcome: str) -> None:
    item = Requirement(name="n", layer="semantic", any=({"a": 1}, {"b": True, "same": ["c", "d"]}), why="w", fix="f")
    assert item.facts == ("a", "b", "c", "d")
    assert item.outcome(facts) == outcome


@pytest.mark.parametrize(
    ("masks", "states", "outcome"), [(True, True, "met"), (True, False, "violated"), (False, True, "violated")]
)
def test_truncation_is_at_parity_where_both_sides_say_that_masks_are_used(
    masks: bool, states: bool, outcome: str
) -> None:
    item = next(each for each in parity_recipe.shipped().requirements if each.name.startswith("whole distribution"))
    facts = {"sampling.top_p": (0.9,), "sampling.top_k": (400,), "sampling.min_p": (0.0,), "trainer.top_p": (1.0,)}
    assert (
        item.outcome(facts | {"engine.return_sampling_mask": (masks,), "trainer.sampling_mask": (states,)}) == outcome
    )


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("requirements: [", "invalid YAML"),
        ("requirement: []", "requirement"),
        ("requirements: [{name: x, layer: nowhere, any: [{a: 1}], why: w, fix: f}]", "layer"),
        ("requirements: [{name: x, layer: semantic, any: [], why: w, fix: f}]", "any"),
        ("trajectories: [{metric: reward, label: reward}]", "either factor or fraction"),
        ("- 1", "its top"),
    ],
)
def test_a_recipe_that_is_none_says_where(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    with pytest.raises(ConfigurationError, match=words) as raised:
        parity_recipe.read(path)
    assert "\n" not in str(raised.value)


def test_a_recipe_that_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="cannot read the recipe"):
        parity_recipe.read(tmp_path / "none.yaml")


def test_a_recipe_of_ones_own_asks_what_it_likes(recorded: Store, tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(
        "requirements:\n- {name: eager, layer: inference_path, any: [{engine.enforce_eager: false}], why: w, fix: f}\n"
        "trajectories:\n- {metric: response_length, label: length, factor: 1.2}\n"
    )
    parity = compare(recorded, "v1-initial", reference="v0-reference", recipe=parity_recipe.read(path))
    assert parity.checks[0].outcome == parity.checks[0].reference == "violated"
    assert unmet(parity) == []
    assert parity.trajectories[0].verdict == "leaves"
    assert parity.verdict == "not_at_parity"


def test_a_setting_is_set_where_the_engines_arguments_name_it(store: Store) -> None:
    summary = {"dtype": "float32", "logprobs_mode": "raw_logprobs"}
    record(store, ("engine_config", {"summary": summary, "arguments": {"model": "m", "dtype": "float32"}}))
    settings = {item.fact: item for check in compare(store, "run").checks for item in check.settings}
    assert settings["engine.dtype"].provenance == "set"
    assert settings["engine.logprobs_mode"].provenance == "left to vLLM"
    assert settings["sampling.top_p"].provenance is None


def trend(values: np.ndarray, first: int = 0) -> dict[int, float]:
    return {first + step: float(value) for step, value in enumerate(values)}


@pytest.mark.parametrize("name", [name for name in HEALTHY if name != "memory of 0.98"])
def test_two_runs_of_one_kind_track_each_other(name: str) -> None:
    left = 0
    for seed in range(30):
        ours, theirs = (trend(series(HEALTHY[name], number, 300)) for number in (seed, seed + 1000))
        left += follow(K3, ours, theirs).verdict != "tracks"
    assert left <= 1


@pytest.mark.parametrize("memory", [0.0, 0.5])
def test_a_run_leaves_where_it_leaves(memory: float) -> None:
    for seed in range(5):
        ours, theirs = (series(Trend(memory=memory, spread=0.15), number, 400) for number in (seed + 1000, seed))
        ours[200:] *= 3
        found = follow(K3, trend(ours), trend(theirs))
        assert (found.verdict, found.side, found.back_step) == ("leaves", "above", None)
        assert 180 <= found.leaves_step <= 210
        assert "in K3" in found.reason


def scaled(first: int, last: int, by: float, steps: int) -> np.ndarray:
    values = series(Trend(spread=0.1), 0, steps)
    values[first:last] *= by
    return values


@pytest.mark.parametrize(
    ("ours", "side", "verdict", "back"),
    [
        (scaled(200, 320, 5, 600), "both", "leaves", range(280, 361)),
        (scaled(100, 115, 50, 300), "both", "tracks", None),  # one odd block
        (scaled(0, 300, 0.1, 300), "both", "leaves", None),
        (scaled(0, 300, 0.1, 300), "above", "tracks", None),  # a side that does not count
    ],
)
def test_parts_of_a_run_that_differ(ours: np.ndarray, side: Any, verdict: str, back: range | None) -> None:
    theirs = trend(series(Trend(spread=0.1), 1, len(ours)))
    found = follow(K3.model_copy(update={"side": side}), trend(ours), theirs)
    assert found.verdict == verdict
    assert (found.back_step is None) if back is None else (found.back_step in back)


def test_only_common_steps_are_compared() -> None:
    theirs = trend(series(Trend(), 0, 300))
    assert follow(K3, trend(series(Trend(), 1, 300), first=290), theirs).verdict == "unknown"
    assert follow(K3, {}, theirs).verdict == "unknown"
    assert follow(K3, trend(series(Trend(), 1, 300), first=100), theirs).blocks[0].first_step == 100
