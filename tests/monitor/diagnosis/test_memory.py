"""What known-good runs of a setup allow to be said of a new one, and what not."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from diagnosis_simulation import Simulation, noisy
from recorded_home import SAMPLE_DATA, take_in

from logprobe.collectors.spool.segments import SpoolWriter
from logprobe.monitor.home import Home
from logprobe.monitor.judging.diagnosing import diagnose
from logprobe.monitor.judging.explain import diagnosed
from logprobe.monitor.judging.frame import Frame
from logprobe.monitor.judging.job import DiagnosisStage
from logprobe.monitor.judging.judgement import Remembered
from logprobe.monitor.judging.memory import known_level, settings_of
from logprobe.monitor.judging.setup import Setup
from logprobe.monitor.recorded import RecordedRun
from logprobe.monitor.service.turns import Turns
from logprobe.monitor.store.store import Store

DENSE = Setup(engines=({"dtype": "bfloat16", "architectures": ["Qwen3ForCausalLM"]},), trainer={"dtype": "float32"})
EXPERTS = Setup(engines=({"dtype": "bfloat16", "architectures": ["Qwen3MoeForCausalLM"]},), trainer=DENSE.trainer)


def beginning(k3: float, setup: Setup = DENSE) -> Frame:
    """The first step of a run whose K3 is about `k3`: noise alone."""
    return Simulation(steps=1, prompts=16, length=32, trained=noisy(float(np.sqrt(2 * k3))), setup=setup).frame()


def runs(count: int, low: float = 5e-4, high: float = 7e-4) -> Remembered:
    return Remembered(count, low, high, (low + high) / 2)


@pytest.mark.parametrize(
    ("k3", "memory", "verdict", "status"),
    [
        (6e-4, None, "calibrating", "as expected"),
        (6e-4, runs(1, 6e-4, 6e-4), "calibrating", "as expected"),
        (6e-4, runs(2), "calibrating", "as expected"),
        (6e-4, runs(12), "healthy", "as expected"),  # at its first step
        (6e-4, runs(12, 5e-2, 7e-2), "calibrating", "as expected"),  # far less than ever: one side's log-probs given to the other?
        (1e-9, runs(12, 5e-5, 9e-5), "calibrating", "as expected"),
        (6.5e-3, runs(12, 5e-3, 7e-3), "healthy", "as expected"),  # above every report, and no more than they had
        (1.6e-2, runs(12, 5e-3, 7e-3), "calibrating", "above"),
        (1.5e-2, None, "calibrating", "above"),  # the table alone
        (1.5e-2, runs(2), "calibrating", "above"),
        (1.5e-2, runs(3), "critical", "far above"),
        (1.5e-2, runs(12), "critical", "far above"),
    ],
)  # fmt: skip
def test_a_first_step_beside_known_good_runs(k3: float, memory: Remembered | None, verdict: str, status: str) -> None:
    frame = replace(beginning(k3), remembered=memory, settings={"dtype": "bfloat16"})
    found = diagnosed(frame)
    assert found["level"] is not None
    assert (found["verdict"], found["level"]["status"]) == (verdict, status)
    assert found["growth"]["verdict"] == "calibrating"
    assert found["level"]["settled"] is (verdict == "healthy")
    if verdict != "calibrating":
        assert memory is not None
        assert found["level"]["source"] == memory.words
        assert (found["layer"] == "none") is (found["correction"]["advice"] == "not_needed") is (verdict == "healthy")
        assert known_level(frame, found) is None  # what it was taught it does not teach


@pytest.mark.parametrize(
    ("memory", "words"),
    [
        (runs(1, 6e-4, 6e-4), "this setup had K3 6e-4 in 1 run; normal is known from 3 on"),
        (runs(2), "this setup had K3 5e-4 to 7e-4 in 2 runs; normal is known from 3 on"),
        (runs(12), "this setup had K3 5e-4 to 7e-4 in 12 runs"),
    ],
)  # fmt: skip
def test_known_good_runs_in_words(memory: Remembered, words: str) -> None:
    assert memory.words == words


@pytest.mark.parametrize(
    ("k3", "growth", "verdict"), [(6e-4, {"baseline": 1e-4}, "calibrating"), (1.5e-2, {"verdict": "healthy"}, "watch")]
)
def test_a_run_with_a_baseline_of_its_own_is_judged_by_it_and_not_by_others(
    k3: float, growth: dict[str, Any], verdict: str
) -> None:
    evidence = beginning(k3)
    own = replace(evidence, remembered=runs(12), growth=replace(evidence.growth, **growth))
    assert diagnosed(own)["verdict"] == verdict


@pytest.mark.parametrize("setup", [DENSE, EXPERTS])
def test_healthy_runs_of_one_setup_with_moving_entropy_are_never_critical(setup: Setup) -> None:
    """Other tasks and a sharper or flatter policy move the level by an order of magnitude and more, within what such setups have."""
    high = 2e-3 if setup is DENSE else 1e-1
    for k3 in np.geomspace(2e-5, 0.9 * high, 8):
        for least in (1e-5, 1e-4, 1e-3):
            found = diagnosed(replace(beginning(float(k3), setup), remembered=runs(12, least, 1.5 * least)))
            assert found["verdict"] in {"healthy", "calibrating"}, (k3, least)


def documents(change: Callable[[dict[str, Any], dict[str, Any]], None] = lambda engine, trainer: None) -> list[Any]:
    engine = {
        "summary": {"dtype": "bfloat16", "logprobs_mode": "processed_logprobs"},
        "effective": {"dtype": "bfloat16", "kernel": "a"},
    }
    trainer: dict[str, Any] = {"framework": "trl", "compute_dtype": "float32", "learning_rate": 1e-5, "run_name": "x"}
    change(engine, trainer)
    row = {"fingerprint": "f", "sequences": 1}
    return [
        {**row, "kind": "engine_config", "document": json.dumps(engine), "deciding": json.dumps(engine)},
        {**row, "kind": "trainer_config", "document": json.dumps(trainer), "deciding": None},
        {**row, "kind": "sampling_params", "document": '{"temperature": 0.7, "stop": ["x"]}', "deciding": None},
    ]  # fmt: skip


def test_settings_are_what_decides() -> None:
    assert settings_of(documents()) == {
        "dtype": "bfloat16",
        "effective.kernel": "a",
        "logprobs_mode": "processed_logprobs",
        "sampling.temperature": "0.7",
        "trainer.compute_dtype": "float32",
        "trainer.framework": "trl",
    }
    assert settings_of(documents(lambda _, trainer: trainer.update(learning_rate=1, run_name="y"))) == settings_of(
        documents()
    )


def test_without_a_side_no_setup_is_called_the_same() -> None:
    assert settings_of([]) == {}
    assert settings_of(documents()[1:]) == {}
    assert settings_of(documents()[:1]) == {}
    assert settings_of(documents(lambda _, trainer: trainer.pop("compute_dtype"))) == {}
    unknown = documents()
    unknown[0]["deciding"] = None  # an engine of which nothing is understood is like itself alone
    assert settings_of(unknown)["engine"] == "f"


def brought(home: Path, run: str, steps: int, change: Callable[[dict[str, Any]], None] = lambda summary: None) -> None:
    """The first steps of a recorded healthy run, as another run, of an engine with another summary and another seed."""
    recorded = RecordedRun(SAMPLE_DATA / "v0-reference")
    writer = SpoolWriter(home, run, "replay")
    for kind in recorded.kinds:
        table = recorded.table(kind)
        if kind in {"training", "step"}:
            table = table.filter(pc.less(table["step"], steps))
        if kind == "config":
            table = _changed(table, change, seed=len(run))
        writer.write(kind, table)


def _changed(table: pa.Table, change: Callable[[dict[str, Any]], None], seed: int) -> pa.Table:
    rows = table.to_pylist()
    for row in rows:
        if row["kind"] == "engine_config":
            document = json.loads(row["document"])
            document["summary"]["seed"] = seed
            change(document["summary"])
            row["document"] = json.dumps(document)
    return pa.Table.from_pylist(rows, table.schema)


def judged(store: Store) -> None:
    take_in(store)
    while Turns(DiagnosisStage(store)).run_once()["runs"]:
        pass


def test_healthy_runs_are_remembered_and_a_new_one_is_judged_by_them(home: Path) -> None:
    for number in range(3):
        brought(home, f"known-{'x' * number}", 205)
    brought(home, "short", 20)
    with Store.open(Home(home)) as store:
        judged(store)
        known = store.query("SELECT run, setup FROM diagnoses WHERE setup IS NOT NULL ORDER BY run").to_pylist()
        assert [row["run"] for row in known] == ["known-", "known-x", "known-xx"]  # a run without a verdict is none
        assert len({row["setup"] for row in known}) == 1  # a seed decides nothing
        brought(home, "new", 2)
        brought(home, "changed", 2, lambda summary: summary.update(block_size=16))
        take_in(store)
        new, changed = (cast("Any", diagnose(store, run)) for run in ("new", "changed"))
        assert (new["verdict"], new["growth"]["verdict"]) == ("healthy", "calibrating")
        assert new["level"]["remembered"]["runs"] == 3
        assert "known-" not in json.dumps(new), "it would outlive the deletion of that run"
        assert changed["verdict"] == "calibrating"
        assert changed["level"]["remembered"] is None

        with store.transaction() as cursor:  # one of them turned out to be ill, by an alert alone
            cursor.execute(
                "INSERT INTO alert_states BY NAME SELECT 'known-x' AS run, 'high' AS rule, 'critical' AS severity, "
                "'firing' AS phase, 'e' AS episode, now() AS changed_at, 'x' AS fingerprint, false AS told, '{}' AS document"
            )
        again = cast("Any", diagnose(store, "new"))
        assert again["verdict"] == "calibrating"
        assert again["level"]["remembered"]["runs"] == 2
