"""Reading a home's correction: what it may say, and what the error says about the rest."""

from __future__ import annotations

from pathlib import Path

import pytest

from logprobe.alerts.controller.policy import Mode, Policies, Policy, load, of_section
from logprobe.collectors.correction.presets import PRESETS
from logprobe.collectors.errors import ConfigurationError
from logprobe.monitor.settings import located


def parse(text: str, file: str) -> Policies:
    return of_section(located.parse(text, file))


def test_runs_differ_from_the_default_and_the_last_match_counts(tmp_path: Path) -> None:
    assert load(tmp_path)("any") == Policy()
    assert Policy().mode is Mode.SUGGEST, "without a file the controller only suggests"
    (tmp_path / "logprobe.yaml").write_text(
        "correction:\n  mode: armed\n  max_masked_share: 0.1\n  correction: {is_level: token, is_mode: mask, is_upper: 3}\n"
        "  runs:\n  - {match: 'prod-*', mode: off}\n  - {match: prod-7, notice_steps: 2}\n"
    )
    default, one, seven = map(load(tmp_path), ("x", "prod-1", "prod-7"))
    assert (default.mode, default.max_masked_share, default.correction.is_upper) == (Mode.ARMED, 0.1, 3.0)
    assert (one.mode, one.max_masked_share) == (Mode.OFF, 0.1)
    assert (seven.mode, seven.notice_steps) == (Mode.ARMED, 2)
    name = next(iter(PRESETS))
    changed = parse(f"correction: {{preset: {name}, veto: 0.001}}", "f").default.correction
    assert changed == PRESETS[name].config.replace(veto=0.001)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("mode: suggest\nmax_masked_shar: 0.1", "f:2: correction.max_masked_shar: unknown key; did you mean 'max_masked_share'"),
        ("mode: always", "f:1: correction.mode: Input should be 'off', 'suggest' or 'armed'"),
        ("\ncool_down_steps: 1.5", "f:2: correction.cool_down_steps: Input should be a valid integer"),
        ("cool_down_steps: true", "correction.cool_down_steps: Input should be a valid integer"),
        ("min_coverage: .nan", "finite number"),
        ("min_coverage: 99", "less than or equal to 1"),
        ("max_masked_share: 20", "less than or equal to 1"),
        ("notice_steps: 0", "greater than or equal to 1"),
        ("correction: icepop", "no correction here; write its fields"),
        ("correction: {is_levle: token}", "did you mean 'is_level'"),
        ("correction: {is_level: null}", "correct nothing"),
        ("correction: {preset: nothing-like-it}", "there is no preset"),
        ("runs:\n  - mode: off", "f:2: an entry of `runs` needs a `match`"),
        ("runs: armed", "must be a list"),
        ("- 1", "expected a mapping"),
    ],
)  # fmt: skip
def test_a_mistake_is_named_with_its_line(text: str, words: str) -> None:
    with pytest.raises(ConfigurationError) as error:
        parse(text, "f")
    assert words in str(error.value)
