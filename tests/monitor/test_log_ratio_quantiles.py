"""Quantiles of log-ratios are those of the tokens, of any columns, and say what they rest on."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from recorded_home import feed, ingest_recorded
from segments import RUN, sampled, trained

from logprobe.monitor.analysis import log_ratio_quantiles as quantiles
from logprobe.monitor.analysis.log_ratio_quantiles import NAMES, Columns
from logprobe.monitor.analysis.profile_job import ProfileJob
from logprobe.monitor.home import Home
from logprobe.monitor.store.store import Store


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    """A recorded run with profiles of all of its 40 steps."""
    home = tmp_path_factory.mktemp("quantiles") / "home"
    ingest_recorded(home, "v1-initial", before_step=40)
    with Store.open(Home(home)) as store:
        ProfileJob(store).run_once()
        yield store


@pytest.mark.parametrize("width", [1, 8, 40])
def test_quantiles_are_those_of_the_tokens_within_a_per_cent(recorded: Store, width: int) -> None:
    found = quantiles.read(recorded, "v1-initial", "backend", Columns(0, 39, width))
    sql = "SELECT step, log_ratio AS d FROM tokens WHERE run = 'v1-initial' AND mask AND log_ratio IS NOT NULL"
    tokens = recorded.query(sql)
    column, d = tokens["step"].to_numpy() // width, tokens["d"].to_numpy()
    for name, share in zip(NAMES, (0.01, 0.1, 0.5, 0.9, 0.99), strict=True):
        wanted = [np.quantile(d[column == at], share, method="inverted_cdf") for at in range(40 // width)]
        assert found.d_C[name] == pytest.approx(wanted, rel=0.0101, abs=1e-12), name
    counts = found.counts_C
    assert counts["steps"].tolist() == counts["profiled"].tolist() == counts["kept"].tolist() == [width] * (40 // width)
    assert (counts["drawn"] + counts["broken"] == counts["expected"]).all()
    assert (counts["seen"] == counts["expected"]).all()
    assert counts["drawn"].tolist() == np.bincount(column).tolist()


def test_what_was_not_profiled_has_no_quantiles_and_broken_tokens_are_beside_them(store: Store) -> None:
    logprobs = trained("s")["trainer_logprobs"]
    feed(
        store,
        rollout=[sampled("s")],
        training=[trained("s", 3, trainer_logprobs=[float("nan"), *logprobs[1:]]), trained("t", 5)],
    )
    found = quantiles.read(store, RUN, "update", Columns(3, 6, 1))
    assert found.counts_C["steps"].tolist() == [1, 0, 1, 0]
    assert not found.counts_C["profiled"].any()
    assert np.isnan(list(found.d_C.values())).all()
    ProfileJob(store).run_once()
    found = quantiles.read(store, RUN, "backend", Columns(3, 3, 1))
    assert found.counts_C["broken"].tolist() == [1]
    assert found.counts_C["drawn"] + 1 == found.counts_C["expected"]


def test_columns_are_no_narrower_than_steps_are_apart() -> None:
    steps = np.arange(0, 5000, 25)
    tokens = np.full(200, 1e6)
    assert quantiles.columns_of(steps, tokens, 0, 4999).width == 25
    assert quantiles.columns_of(steps, tokens, 75, 75) == Columns(75, 75, 1)


def test_few_tokens_get_wide_columns_but_not_too_few_of_them() -> None:
    steps = np.arange(1000)
    sizes = [quantiles.columns_of(steps, np.full(1000, tokens), 0, 999).size for tokens in (np.nan, 1.0, 400.0, 1e6)]
    assert sizes == [59, 59, 143, 200]
