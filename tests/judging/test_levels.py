"""The table of healthy levels: rows are whole, measured set-ups lie in the bands that fit them, and words name what a run is compared with."""

from __future__ import annotations

from typing import Any

import pytest
from judging.worlds import World

from logprobe.monitor.judging.explain import diagnosed
from logprobe.monitor.judging.level import band_of, in_words, recorded_like, setup_of
from logprobe.monitor.judging.levels import BANDS, SETUPS, Recorded
from logprobe.monitor.judging.setup import Setup

KEYS = set(setup_of(World(steps=1).frame()))
MEASURED = [row for row in SETUPS if row.source.startswith("measured")]


def as_recorded(row: Recorded) -> Setup:
    """The set-up's configuration, as engine and trainer record it."""
    quantization = None if row.setup["weights"] == "as the dtype" else row.setup["weights"]
    model = "Qwen3MoeForCausalLM" if row.setup["experts"] == "yes" else "Qwen3ForCausalLM"
    engine = {"dtype": row.setup["engine_dtype"], "kv_cache_dtype": row.setup["kv_cache"], "quantization": quantization}
    return Setup(engines=({**engine, "architectures": [model]},), trainer={"dtype": row.setup["trainer_dtype"]})


@pytest.mark.parametrize("row", SETUPS, ids=lambda row: row.name)
def test_rows_are_whole(row: Recorded) -> None:
    assert KEYS <= set(row.setup) <= {*KEYS, "also"}
    assert 0 < row.low <= row.high
    assert row.source.startswith(("measured: ", "reported: "))
    assert (row.runs is not None and row.tokens is not None) or row not in MEASURED


def test_names_are_names() -> None:
    for rows in (BANDS, SETUPS):
        assert len({row.name for row in rows}) == len(rows)
    assert len(MEASURED) >= 12


@pytest.mark.parametrize("row", MEASURED, ids=lambda row: row.name)
def test_a_measured_set_up_is_in_its_band(row: Recorded) -> None:
    assert row.high <= band_of(as_recorded(row))


def test_a_run_is_told_the_row_that_it_is_compared_with() -> None:
    world = World(
        seed=3, steps=60, engine={"kv_cache_dtype": "auto", "head_dtype": "bfloat16"}, trainer={"dtype": "float32"}
    )
    level = diagnosed(world.frame())["level"]
    assert level["bands"] == ["bf16 engine, dense"]
    assert "row “bf16 engine, dense”; “bf16” of the same settings has 0.00013, measured: " in in_words(level)


@pytest.mark.parametrize(
    "changed", [{"kv_cache": "fp8"}, {"experts": None}, {"weights": "awq"}, {"trainer_dtype": "float16"}]
)
def test_only_the_same_settings_are_like_a_recorded_set_up(changed: dict[str, Any]) -> None:
    bf16 = next(row for row in SETUPS if row.name == "bf16")
    assert recorded_like(bf16.setup) is bf16
    assert recorded_like({**bf16.setup, **changed}) is not bf16


def test_a_run_of_unknown_settings_is_like_no_report_that_leaves_them_out() -> None:
    partly = [row for row in SETUPS if row.source.startswith("reported")]
    assert partly
    assert {recorded_like(row.setup) for row in partly} == {None}
