"""The grid of log-ratios: every token is in it once, columns merge by adding, and quantiles are those of the tokens."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from recorded_home import feed, ingest_recorded
from segments import RUN, sampled, trained

from logprobe.monitor.analysis import log_ratio_density as density
from logprobe.monitor.analysis.log_ratio_density import Columns
from logprobe.monitor.analysis.profile_job import ProfileJob
from logprobe.monitor.analysis.profiles import LOG_GAMMA
from logprobe.monitor.home import Home
from logprobe.monitor.store.store import Store

Q = (0.01, 0.5, 0.99)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    """A recorded run with profiles of all of its 40 steps."""
    home = tmp_path_factory.mktemp("density") / "home"
    ingest_recorded(home, "v1-initial", before_step=40)
    with Store.open(Home(home)) as store:
        ProfileJob(store).run_once()
        yield store


def read(store: Store, width: int) -> density.Density:
    return density.read(store, "v1-initial", "backend", Columns(0, 39, width))


def test_every_token_stands_in_the_grid_once_and_wide_columns_are_the_sums_of_narrow_ones(recorded: Store) -> None:
    narrow, wide = read(recorded, 1), read(recorded, 8)
    wanted = recorded.query("SELECT tokens FROM step_summaries WHERE run = 'v1-initial' ORDER BY step")
    assert (narrow.tokens_CB.sum(axis=1) + narrow.broken_C).tolist() == wanted["tokens"].to_pylist()
    assert (narrow.seen_C == narrow.expected_C).all()
    assert narrow.profiled_C.tolist() == narrow.steps_C.tolist() == [1] * 40
    assert narrow.floor == wide.floor
    assert (narrow.tokens_CB.reshape(5, 8, -1).sum(axis=1) == wide.tokens_CB).all()
    assert wide.steps_C.tolist() == [8] * 5


def test_quantiles_lie_in_the_row_of_the_tokens_own(recorded: Store) -> None:
    grid = read(recorded, 40)
    d = recorded.query("SELECT log_ratio AS d FROM tokens WHERE run = 'v1-initial' AND mask AND log_ratio IS NOT NULL")
    wanted = np.quantile(d["d"].to_numpy(), Q, method="lower")
    edges = grid.edges()
    assert len(edges) == grid.tokens_CB.shape[1] + 1
    assert (np.diff(edges) > 0).all()
    rows = np.searchsorted(edges, wanted)
    # A row, and the error of the profile's bins
    assert np.abs(np.searchsorted(edges, grid.quantiles(Q)[0]) - rows).max() <= 1


def test_what_was_not_profiled_is_no_empty_density_and_broken_tokens_are_beside_it(store: Store) -> None:
    logprobs = trained("s")["trainer_logprobs"]
    feed(
        store,
        rollout=[sampled("s")],
        training=[trained("s", 3, trainer_logprobs=[float("nan"), *logprobs[1:]]), trained("t", 5)],
    )
    grid = density.read(store, RUN, "update", Columns(3, 6, 1))
    assert grid.steps_C.tolist() == [1, 0, 1, 0]
    assert not grid.profiled_C.any()
    assert np.isnan(grid.quantiles(Q)).all()
    ProfileJob(store).run_once()
    grid = density.read(store, RUN, "backend", Columns(3, 3, 1))
    assert grid.broken_C.tolist() == [1]
    assert grid.tokens_CB.sum() + 1 == grid.expected_C.sum()


def test_few_tokens_get_wide_rows(recorded: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = read(recorded, 1)  # some 700 tokens a step
    monkeypatch.setattr(density, "_FEW", 0)
    fine = read(recorded, 1)
    assert (chosen.merged, fine.merged) == (density.COARSE, density.FINE)
    assert (chosen.tokens_CB.sum(axis=1) == fine.tokens_CB.sum(axis=1)).all()
    width = np.exp(density.COARSE * LOG_GAMMA)  # of a row, as a factor of |d|
    ratio = (np.abs(chosen.quantiles(Q)) + chosen.floor) / (np.abs(fine.quantiles(Q)) + chosen.floor)
    assert (np.abs(np.log(ratio)) < 3 * np.log(width)).all()


def test_columns_are_no_narrower_than_steps_are_apart() -> None:
    steps = np.arange(0, 5000, 25)
    tokens = np.full(200, 1e6)
    assert density.columns_of(steps, tokens, 0, 4999).width == 25
    assert density.columns_of(steps, tokens, 75, 75) == Columns(75, 75, 1)


def test_few_tokens_get_wide_columns_but_not_too_few_of_them() -> None:
    steps = np.arange(1000)
    sizes = [density.columns_of(steps, np.full(1000, tokens), 0, 999).size for tokens in (np.nan, 1.0, 400.0, 1e6)]
    assert sizes == [59, 59, 143, 200]
