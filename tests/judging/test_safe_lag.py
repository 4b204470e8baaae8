"""Safe lag of log-ratios whose ESS is known: d ~ N(−σ²/2, σ²) has E[ρ] = 1 and an ESS of exp(−σ²), thus 0.5 at σ² = ln 2."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import pytest

from logprobe.monitor.judging.document import LagDocument
from logprobe.monitor.judging.safe_lag import curve, due_to_length, of_tokens
from logprobe.monitor.judging.thresholds import number
from logprobe.monitor.judging.tokens import Tokens

EVERY = tuple(range(16))


@dataclass(frozen=True)
class Run:
    """`floor`, `size`, `power`: σ² = floor + size · lag^power. `mixed`: each step has every lag, or else one lag after the other."""

    lags: tuple[float, ...] = EVERY
    floor: float = 0.02
    size: float = 0.09
    power: float = 1.0
    sequences: int = 600
    length: int = 40
    mixed: bool = True
    restless: float = 0.0  # σ of the logarithm of each step's drift
    seed: int = 0
    longer: int = 0  # tokens by which an answer is longer for each version that it is old
    unlike: int = 0  # tokens by which the length of an answer differs by chance, at most
    by_length: float = 0.0  # σ² that each token of an answer's length adds

    def tokens(self) -> Tokens:
        rng = np.random.default_rng(self.seed)
        at = np.arange(self.sequences)
        lag = np.array(self.lags)[at % len(self.lags) if self.mixed else at * len(self.lags) // self.sequences]
        step = at // 16
        unrest = np.exp(self.restless * rng.standard_normal(step.max() + 1))[step]
        own = np.abs(np.nan_to_num(lag))
        length = (self.length + self.longer * own + rng.integers(0, self.unlike + 1, self.sequences)).astype(int)
        added = self.by_length * (length - self.length)
        variance = np.repeat(self.floor + self.size * unrest * own**self.power + added, length)
        d = rng.normal(-variance / 2, np.sqrt(variance))
        many = lambda values: np.repeat(values, length)
        none, no = np.zeros(len(d), np.intp), np.zeros(len(d), bool)
        return Tokens(
            step=many(step), sequence=many(at), place=none, last=no, token_id=none, r=np.zeros(len(d)), t=d, d=d, broken=no,
            entropy=np.full(len(d), np.nan), lag=many(lag).astype(float), version=none, replica=none, cached=none, context=none,
        )  # fmt: skip


def safe_of(**run: object) -> LagDocument:
    found = of_tokens(Run(**run).tokens())
    assert found is not None
    return found


# A random walk is at ln 2 after (0.693 − 0.02) / 0.09 = 7.5 versions and at −ln 0.9 after 0.9; steady motion after
# √(0.673 / 0.0085) = 8.9 and √(0.085 / 0.0085) = 3.2.
@pytest.mark.parametrize(
    ("run", "corrected", "uncorrected", "times"), [({}, 7, 0, 4.0), ({"size": 0.0085, "power": 2.0}, 8, 3, 2.0)]
)
def test_limits_and_what_half_the_learning_rate_allows(
    run: dict[str, float], corrected: int, uncorrected: int, times: float
) -> None:
    found = safe_of(**run)
    for limit, lag in ((found["corrected"], corrected), (found["uncorrected"], uncorrected)):
        assert limit is not None
        assert limit["lag"] is not None
        assert abs(limit["lag"] - lag) <= 1
        low, high = limit["interval"]
        assert low <= lag <= high <= lag + 2
        assert not limit["largest_seen"]
    assert found["half_learning_rate"] is not None
    assert found["half_learning_rate"][1] <= times <= found["half_learning_rate"][2]
    assert found["k3_per_update"] == pytest.approx(run.get("size", 0.09) / 2, rel=0.5)
    plain = Run(**run).tokens()
    rho = np.exp(plain.d[plain.lag == 3])
    row = found["by_lag"][3]
    assert row["lag"] == 3
    assert row["ess"] == pytest.approx(rho.sum() ** 2 / (len(rho) * (rho**2).sum()))
    assert row["masked"] == pytest.approx(np.mean((rho > 2) | (rho < 0.5)))


def test_the_interval_holds_the_true_lag_where_steps_differ() -> None:
    found = [safe_of(seed=seed, restless=0.1, sequences=960)["corrected"]["interval"] for seed in range(40)]
    assert sum(low <= 7 <= high for low, high in found) >= 36
    assert max(high - low for low, high in found) <= 6


def test_one_extreme_token_of_a_small_lag_does_not_make_larger_ones_unsafe() -> None:
    tokens = Run().tokens()
    tokens.d[np.flatnonzero(tokens.lag == 2)[0]] = 4.0
    own = np.exp(tokens.d[tokens.lag == 2])
    assert own.sum() ** 2 / (len(own) * (own**2).sum()) < 0.5
    found = of_tokens(tokens)
    assert found is not None
    ess = [row["ess"] for row in found["by_lag"]]
    assert ess == sorted(ess, reverse=True)
    assert ess[2] > 0.5
    assert found["corrected"]["lag"] in {6, 7, 8}


def test_of_lags_beyond_the_largest_seen_nothing_is_said() -> None:
    found = safe_of(lags=(0, 1, 2, 3), size=0.02)
    assert found["uncorrected"] == {"lag": 3, "interval": [3, None], "largest_seen": True}
    assert found["words"].startswith(
        "at least 3 versions without a correction (ESS of at least 0.9), at least 3 versions with one"
    )
    alone = safe_of(lags=(4,))
    assert alone["words"].startswith(
        "none of the lags seen without a correction (ESS of at least 0.9), at least 4 versions with"
    )
    assert alone["half_learning_rate"] is None


def test_between_two_lags_seen_the_interval_reaches_up_to_the_unsafe_one() -> None:
    found = safe_of(lags=(0, 12))
    assert found["corrected"] == {"lag": 0, "interval": [0, 11], "largest_seen": False}
    assert "0 versions (95 % interval 0 to 11) with one" in found["words"]
    assert curve(found).startswith("0: 0.98, 12: 0.")


def test_a_floor_that_is_unsafe_by_itself_is_not_blamed_on_the_lag() -> None:
    found = safe_of(floor=1.5)
    assert (found["uncorrected"]["lag"], found["corrected"]["lag"]) == (None, None)
    assert " at lag 0, which no bound on the lag changes" in found["words"]
    assert "no bound" not in safe_of(lags=(12, 15))["words"]


@pytest.mark.parametrize("lags", [(0,), (math.nan,), (-3.0,)])
def test_without_a_lag_there_is_no_answer(lags: tuple[float, ...]) -> None:
    assert of_tokens(Run(lags=lags).tokens()) is None


def test_a_lag_that_grew_over_steps_says_nothing_about_the_learning_rate() -> None:
    found = safe_of(mixed=False)
    assert found["corrected"]["lag"] in {6, 7, 8}
    assert (found["half_learning_rate"], found["k3_per_update"]) == (None, None)


OLD_AND_LONG = {"lags": tuple(range(6)), "longer": 30}


# σ² of 0.0025 for each token of length adds as much per version as `size`. Lengths that differ by at most 150 tokens overlap.
@pytest.mark.parametrize(
    ("run", "told"),
    [
        ({"size": 0.0, "by_length": 0.0025}, False),
        ({"size": 0.0, "by_length": 0.0025, "unlike": 150}, False),
        ({"size": 0.09}, False),
        ({"size": 0.09, "unlike": 150}, True),
        ({"size": 0.09, "unlike": 150, "by_length": 0.0005}, True),
    ],
    ids=["length alone", "length alone, overlapping", "cannot be separated", "lag alone", "mostly lag"],
)
@pytest.mark.parametrize("seed", range(3))
def test_what_length_explains_is_not_said_of_the_lag(run: dict[str, float], told: bool, seed: int) -> None:
    tokens = Run(**OLD_AND_LONG, **run, seed=seed).tokens()
    found = of_tokens(tokens)
    assert found is not None
    assert due_to_length(tokens) != told
    assert (found["uncorrected"] is not None) == (found["corrected"] is not None) == told
    assert (found["half_learning_rate"] is not None) == told
    assert found["words"].startswith("unknown, since older answers differ in length") != told
    assert len(found["by_lag"]) == len(OLD_AND_LONG["lags"])


def test_where_ess_does_not_fall_length_is_no_reason_to_say_nothing() -> None:
    found = safe_of(**OLD_AND_LONG, size=0.0, by_length=0.0001)
    assert found["half_learning_rate"] is None
    assert found["uncorrected"] == {"lag": 5, "interval": [5, None], "largest_seen": True}


def test_each_lag_is_known_by_its_newest_steps() -> None:
    early, late = Run(size=0.5, sequences=1600).tokens(), Run(sequences=1600, seed=1).tokens()
    both = {name: np.concatenate([getattr(early, name), getattr(late, name)]) for name in ("d", "t", "lag")}
    rest = {name: np.tile(getattr(early, name), 2) for name in Tokens.__dataclass_fields__ if name not in both}
    rest["step"] = np.concatenate([early.step, early.step.max() + 1 + late.step])
    found = of_tokens(Tokens(**rest, **both))
    assert found is not None
    assert found["corrected"]["lag"] in {6, 7, 8}


@pytest.mark.parametrize(("short", "largest"), [(0, 3), (1, 2)])
def test_a_lag_counts_from_the_fewest_tokens_of_a_mean_on(short: int, largest: int) -> None:
    fewest = int(number("fewest"))
    tokens = Run(lags=(0, 1, 2, 3), sequences=4, length=fewest).tokens()
    found = of_tokens(tokens.where(np.arange(len(tokens)) < len(tokens) - short))
    assert found is not None
    assert found["by_lag"][-1]["lag"] == largest
