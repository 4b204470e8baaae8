"""Thresholds from settings: what is read, and mistakes named with file, line and key."""

from __future__ import annotations

from pathlib import Path

import pytest

from logprobe.alerts.rules import thresholds
from logprobe.alerts.rules.thresholds import Threshold
from logprobe.collectors.errors import ConfigurationError

GOOD = "alerts:\n  - {name: high, metric: k3_kl, above: 0.1}\n"


def read(home: Path, text: str) -> tuple[Threshold, ...]:
    home.mkdir(exist_ok=True)
    (home / "logprobe.yaml").write_text(text)
    return thresholds.of_home(home)


def test_the_template_is_right(home: Path) -> None:
    (threshold,) = read(home, thresholds.TEMPLATE)
    assert threshold.fires_when == "Effective sample size below 0.3 for 10 steps"
    assert (threshold.metric, threshold.runs) == ("backend.ess", "prod-*")


def test_what_is_left_out_metrics_of_other_pairs_and_runs_by_pattern(home: Path) -> None:
    text = (
        GOOD
        + "  - {name: kl, metric: update.k3_kl, below: 1}\n  - {name: low, metric: ess, below: 0.3, runs: 'prod-*'}\n"
    )
    found = read(home, text)
    assert (found[0].severity, found[0].steps, found[0].runs) == ("warning", 5, "*")
    assert [t.called for t in found][:2] == ["K3", "K3 (update)"]
    assert [t.name for t in thresholds.for_run(found, "prod-1")] == ["high", "kl", "low"]
    assert [t.name for t in thresholds.for_run(found, "ablation")] == ["high", "kl"]
    assert [read(home, none) for none in ("", "alerts:\n", "alerts: []\n", "alerts: {}\n")] == [()] * 4


@pytest.mark.parametrize(
    ("entry", "place", "words"),
    [
        ("{name: high, metric: k3kl, above: 1}", "2: alerts.0.metric", "did you mean 'k3_kl'?"),
        ("{name: high, metric: k3_kl}", "2: alerts.0", "give either `above` or `below`"),
        ("{name: high, metric: k3_kl, above: 1, below: 0}", "2: alerts.0", "give either"),
        ("{name: high, metric: k3_kl, above: .inf}", "2: alerts.0.above", "finite"),
        ("{name: high, metric: k3_kl, above: 1, for: 3}", "2: alerts.0.for", "unknown key"),
        ("{name: high, metric: k3_kl, above: 1, steps: 0}", "2: alerts.0.steps", "greater than or equal to 1"),
        ("{name: high, metric: k3_kl, above: 1, severity: bad}", "2: alerts.0.severity", "'critical'"),
        ("{name: High, metric: k3_kl, above: 1}", "2: alerts.0.name", "pattern"),
        ("{name: judgement, metric: k3_kl, above: 1}", "2: alerts.0.name", "the name of a built-in alert"),
        ("{metric: k3_kl, above: 1}", "2: alerts.0.name", "required"),
        ("{name: high, metric: k3_kl, above: 1}\n  - {name: high, metric: ess, below: 1}", "", "several alerts"),
    ],
)
def test_mistakes(home: Path, entry: str, place: str, words: str) -> None:
    with pytest.raises(ConfigurationError, match=words) as refused:
        read(home, f"alerts:\n  - {entry}\n")
    assert f"logprobe.yaml:{place}" in str(refused.value)


def test_a_section_of_another_kind_is_refused(home: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"logprobe.yaml:2: `alerts` must be a list of thresholds"):
        read(home, "alerts:\n  rules: []\n")


def test_another_file(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(GOOD)
    assert [t.name for t in thresholds.of_file(file)] == ["high"]
    with pytest.raises(ConfigurationError, match="cannot be read"):
        thresholds.of_file(tmp_path / "none.yaml")


def test_a_fingerprint_is_of_what_decides_when_it_fires(home: Path) -> None:
    (one,), (other,), (same,) = (
        read(home, GOOD.replace(*change)) for change in (("0.1", "0.1"), ("0.1", "0.2"), ("high", "higher"))
    )
    assert one.fingerprint != other.fingerprint
    assert one.fingerprint == same.fingerprint
