"""Which rows the overview can have: every metric of the catalog, each once, by a name in the address."""

from __future__ import annotations

from collections import Counter

from logprobe.app.dashboard.charts.panels import OFFERED, OVERVIEW, chosen
from logprobe.monitor.metrics.catalog import KEYS


def test_each_metric_is_in_one_row() -> None:
    drawn = Counter(line.metric for panel in OFFERED.values() for line in panel.lines)
    assert set(drawn) >= {key for key in KEYS if key.partition(".")[0] == "backend" or "." not in key}
    assert set(drawn.values()) == {1}


def test_the_address_names_rows_and_what_there_is_not_is_left_out() -> None:
    assert [panel.metric for panel in chosen("reward,no-such,backend.k3_kl,ess_seq")][:2] == ["backend.k3_kl", "reward"]
    assert len(chosen("reward,no-such,backend.k3_kl,ess_seq")) == 3
    for nothing in (None, "", "no-such", ",,"):
        assert chosen(nothing) == OVERVIEW
