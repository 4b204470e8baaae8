"""`logprobe show` and `logprobe compare --recipe`, on recorded runs without a service and through one."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from processes import eventually, service
from recorded_home import ingest_recorded

from logprobe.app.cli import main

KEYS = [
    "run", "verdict", "since_step", "doubling_steps", "layer", "findings", "not_measured", "correction", "unexplained", "level",
    "growth", "why_it_grew", "lag", "discarded", "framework",
]  # fmt: skip


def ask(capsys: pytest.CaptureFixture[str], *words: str, code: int | None = 0) -> str:
    done = main(list(words))
    assert code is None or done == code
    return capsys.readouterr().out


def diagnosed(capsys: pytest.CaptureFixture[str], home: Path, run: str, *words: str) -> dict[str, Any]:
    document = json.loads(ask(capsys, "show", run, "--json", "--home", str(home), *words, code=None))
    assert list(document)[: len(KEYS)] == KEYS
    return document


def test_the_safe_lag_and_the_row_of_levels_are_shown(capsys: pytest.CaptureFixture[str], recorded_runs: Path) -> None:
    document = diagnosed(capsys, recorded_runs, "late-growth")
    bound = document["lag"]["uncorrected"]["lag"]
    assert bound in {2, 3}
    assert document["lag"]["corrected"]["lag"] > bound
    stale = next(finding for finding in document["findings"] if finding["cause"] == "staleness")
    assert stale["fix"].startswith(f"Bound the lag to {bound} versions (")
    assert f"Safe lag: {bound} versions" in stale["explanation"]
    words = " ".join(ask(capsys, "show", "late-growth", "--home", str(recorded_runs), code=None).split())
    assert f"safe lag {bound} versions (95 % interval" in words
    assert document["level"]["bands"] == ["float32, dense"]
    assert "compared with 0 to 1e-5; row “float32, dense”" in words


def test_people_read_the_verdict_first_and_the_remedy_next(
    capsys: pytest.CaptureFixture[str], recorded_runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    lines = ask(capsys, "show", "v1-initial", "--home", str(recorded_runs), code=2).splitlines()
    assert lines[0].startswith("v1-initial: Critical, since step 0, raw logprobs.")
    assert any(line.startswith("layer        semantic") for line in lines[:4])
    assert any("--logprobs-mode processed_logprobs" in line for line in lines[4:20])
    assert any("calibration z" in line for line in lines)
    assert max(map(len, lines)) <= 80


def test_part_of_a_run_can_be_asked_for(capsys: pytest.CaptureFixture[str], recorded_runs: Path) -> None:
    document = diagnosed(capsys, recorded_runs, "late-growth", "--steps", "700:")
    assert (document["verdict"], document["findings"][0]["layer"]) == ("critical", "objective")
    assert abs(document["since_step"] - 500) <= 60  # by what was normal before the window
    none = diagnosed(capsys, recorded_runs, "v0-reference", "--steps", "5000:")
    assert (none["verdict"], none["layer"]) == ("no_data", "unknown")
    assert none["not_measured"][0]["how"]


def test_a_run_that_is_not_there_is_named(capsys: pytest.CaptureFixture[str], recorded_runs: Path) -> None:
    assert main(["compare", "v1-final", "--recipe", "--home", str(recorded_runs)]) == 1
    assert "did you mean" in capsys.readouterr().err


def test_parity_is_told_by_the_exit_code(
    capsys: pytest.CaptureFixture[str], recorded_runs: Path, tmp_path: Path
) -> None:
    home = ("--home", str(recorded_runs))
    same = ask(capsys, "compare", "v1-fixed", "--recipe", "v0-reference", *home)
    assert same.startswith("v1-fixed is at parity with v0-reference\n")
    other = ask(capsys, "compare", "v1-initial", "--recipe", "v0-reference", *home, code=2)
    assert other.startswith("v1-initial is NOT at parity with v0-reference\n")
    assert "leaves the reference at step 20 in reward" in " ".join(other.split())
    document = json.loads(ask(capsys, "compare", "v1-initial", "--recipe", "--json", *home, code=2))
    assert document["verdict"] == document["checks"][0]["verdict"] == "not_at_parity"
    recipe = tmp_path / "ours.yaml"
    recipe.write_text(
        "requirements:\n- name: sixteen bits\n  layer: inference_path\n  any: [{engine.dtype: bfloat16}]\n"
        "  why: our trainer has them\n  fix: --dtype bfloat16\n"
    )
    words = ("compare", "v0-reference", "--recipe", str(recipe), *home)
    assert "sixteen bits: engine.dtype = float32" in ask(capsys, *words, code=2)
    recipe.write_text("nonsense: 1")
    assert main(list(words)) == 1
    assert "docs/compare.md" in capsys.readouterr().err


def alike(one: Any, other: Any) -> bool:
    """Whether two documents are the same but for the last digits: DuckDB adds in the order in which its threads are done."""
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, rel_tol=1e-9, abs_tol=1e-12)
    if isinstance(one, dict) and isinstance(other, dict):
        return list(one) == list(other) and all(alike(one[name], other[name]) for name in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(alike, one, other))
    return bool(one == other)


def test_a_service_diagnoses_by_itself_and_answers_the_same(capsys: pytest.CaptureFixture[str], home: Path) -> None:
    ingest_recorded(home, "v1-initial", before_step=40)
    alone = diagnosed(capsys, home, "v1-initial")
    with service(home) as reader:
        written = eventually(
            lambda: reader.read("diagnosis_latest", run="v1-initial").to_pylist(), "the job writes a diagnosis"
        )
        beside = diagnosed(capsys, home, "v1-initial")
        assert [document["judgement"]["verdict"] for document in (alone, beside)] == ["critical"] * 2
        alone, beside = ({key: document[key] for key in KEYS if key != "correction"} for document in (alone, beside))
        assert alike(beside, alone)
        parity = json.loads(ask(capsys, "compare", "v1-initial", "--recipe", "--json", "--home", str(home), code=2))
    assert parity["verdict"] == "not_at_parity"
    kept = json.loads(written[0]["document"])
    assert alike({key: kept[key] for key in alone}, alone)
    assert written[0]["verdict"] == "critical"
