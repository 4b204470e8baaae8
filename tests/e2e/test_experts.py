"""A mixture of experts on a real engine: the plugin's routes beside a trainer's, down to the metric."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from engine_process import EngineHost
from recorded_home import take_in

from logprobe.monitor.home import Home
from logprobe.monitor.store.store import Store

pytestmark = pytest.mark.engine
TOKENS, LAYERS = 8 * 12, 2  # of the three layers one is dense


@pytest.fixture(scope="module")
def told_and_measured(
    engines: EngineHost, models: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Any, dict[int, dict[str, float | None]]]:
    folder = tmp_path_factory.mktemp("experts")
    told = engines.run("experts", models, LOGPROBE_HOME=str(folder / "home"), LOGPROBE_RUN="moe")
    with Store.open(Home(folder / "home")) as store:
        take_in(store)
        stored = store.query("SELECT step, metric, value FROM step_metrics").to_pylist()
    measured: dict[int, dict[str, float | None]] = {}
    for row in stored:
        measured.setdefault(row["step"], {})[row["metric"]] = row["value"]
    return told, measured


def test_the_agreement_is_that_of_plain_sets(told_and_measured: tuple[Any, Any]) -> None:
    """Of the same weights, and of others; a token whose route was not returned is not compared."""
    told, measured = told_and_measured
    assert told["flushed"]
    assert told["shape"] == [12 + 12 - 1, 3, 2]  # vLLM: every position but the last token's, every layer
    for step in (1, 2):
        equal, compared = told[str(step)]
        assert measured[step]["routing_agreement"] == pytest.approx(equal / compared)
        assert measured[step]["routing_mismatch_frac"] == 0.0
    same, others = measured[1], measured[2]
    assert same["routing_agreement"] > 0.99 > 0.95 > others["routing_agreement"]
    assert same["backend.k3_kl"] < 1e-6 < 1e-5 < others["backend.k3_kl"]
    assert told["response_only"] == 11  # rows from the first sampled token on; that which predicted it is the prompt's
    assert told["1"][1] == (TOKENS - 1) * LAYERS
    assert same["routing_coverage"] == pytest.approx((TOKENS - 1) / TOKENS)
