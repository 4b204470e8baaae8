"""`CorrectionConfig` as plain data: what it refuses, how it travels, and the presets."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from dataclasses import FrozenInstanceError
from typing import Any

import pytest

from logprobe.collectors.correction import CorrectionConfig
from logprobe.collectors.correction.presets import PRESETS, preset
from logprobe.collectors.errors import ConfigurationError


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"is_level": "seq"}, "is_level='seq' is unknown; use one of None, 'token', 'sequence', 'geometric'"),
        ({"is_mode": None}, "is_mode=None is unknown; use one of 'truncate', 'clip', 'mask'"),
        ({"denominator": "keeps"}, "denominator='keeps' is unknown; use one of 'keep', 'renormalize'"),
        ({"normalize": 1}, "normalize=1 is unknown; use one of True, False"),
        ({"is_upper": "2"}, "is_upper='2' is not a finite number; pass one, or None"),
        ({"is_upper": True}, "is_upper=True is not a finite number"),
        ({"is_upper": float("inf")}, "is_upper=inf is not a finite number; pass one, or None for no bound"),
        ({"is_level": "token", "is_lower": 3}, "is_lower=3.0 is above is_upper=2.0"),
        ({"is_level": "token", "is_upper": 0}, "is_upper=0: every weight would be 0"),
        (
            {"is_level": "token", "is_lower": -1, "is_mode": "clip"},
            "is_lower=-1.0 bounds values that are never below 0",
        ),
        (
            {"is_level": "token", "is_mode": "clip"},
            "is_mode='clip' needs is_lower; set it, or use 'truncate' to limit weights from above only",
        ),
        ({"is_level": "token", "is_mode": "mask", "is_upper": None}, "is_mode='mask' needs is_lower or is_upper"),
        ({"rs_level": "token"}, "rs_level='token' needs rs_lower or rs_upper"),
        ({"rs_level": "token", "rs_lower": 2, "rs_upper": 1}, "rs_lower=2.0 is above rs_upper=1.0"),
        ({"rs_level": "token", "rs_lower": -0.1}, "rs_lower=-0.1 bounds values that are never below 0"),
        (
            {"rs_level": "max", "rs_upper": 1, "rs_by_advantage": True},
            "rs_by_advantage=True needs rs_level='token'",
        ),
        ({"veto": 2}, "veto=2.0 is not a ratio between 0 and 1"),
        ({"normalize": True}, "normalize=True without is_level"),
    ],
)
def test_what_makes_no_sense_is_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        CorrectionConfig(**fields)
    assert message in str(caught.value)


def test_probability_differences_have_a_bound_below_0() -> None:
    assert CorrectionConfig(rs_level="token", rs_measure="prob_diff", rs_lower=-0.2).rs_lower == -0.2


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_travels_as_json(name: str) -> None:
    config = preset(name)
    document = json.loads(json.dumps(config.to_dict()))
    assert CorrectionConfig.from_dict(document) == config
    assert CorrectionConfig.from_dict(document).fingerprint() == config.fingerprint()
    assert pickle.loads(pickle.dumps(config)) == config
    assert PRESETS[name].source


def test_a_field_that_is_left_out_has_its_default_and_an_unknown_one_is_refused() -> None:
    assert CorrectionConfig.from_dict({}) == CorrectionConfig()
    assert CorrectionConfig.from_dict({"of_another_release": None}) == CorrectionConfig()
    with pytest.raises(ConfigurationError, match="of_another_release"):
        CorrectionConfig.from_dict({"of_another_release": 2.0})
    with pytest.raises(ConfigurationError, match=r"no field 'is_uper'; did you mean 'is_upper'"):
        CorrectionConfig.from_dict({"is_uper": 2.0})
    with pytest.raises(ConfigurationError, match="no field 7; use one of is_level, is_mode"):
        CorrectionConfig.from_dict({7: 2.0})  # type: ignore[dict-item]
    with pytest.raises(ConfigurationError, match="a mapping of fields, not list"):
        CorrectionConfig.from_dict([])  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="no field 'level'"):
        CorrectionConfig().replace(level="token")


def test_it_cannot_be_changed() -> None:
    with pytest.raises(FrozenInstanceError):
        CorrectionConfig().is_upper = 3.0  # type: ignore[misc]
    assert len({CorrectionConfig(is_upper=2), CorrectionConfig(is_upper=2.0)}) == 1


def test_the_fingerprint_is_that_of_the_content_in_every_process() -> None:
    config = CorrectionConfig(is_level="token", is_mode="mask", is_lower=0.5, is_upper=5)
    assert config.fingerprint() == CorrectionConfig.from_dict(config.to_dict()).fingerprint()
    assert config.fingerprint() != config.replace(is_upper=4).fingerprint()
    assert preset("openrlhf/icepop").fingerprint() == config.fingerprint() == "db000d9611be022a"


def test_it_says_what_it_does() -> None:
    assert str(CorrectionConfig()) == "no correction"
    assert str(CorrectionConfig(is_level="token", is_mode="mask")) == "is_level=token, is_mode=mask, is_upper=2.0"


def test_presets_take_changes_and_suggest_names() -> None:
    assert preset("openrlhf/tis", is_upper=3).is_upper == 3
    with pytest.raises(ConfigurationError, match=r"no preset 'open-rlhf/tis'; did you mean one of these: openrlhf/tis"):
        preset("open-rlhf/tis")
    with pytest.raises(ConfigurationError, match=r"is_lower=0.5 is above is_upper=0.1"):
        preset("openrlhf/tis", is_upper=0.1)


def test_torch_is_not_imported_for_numpy_arrays() -> None:
    code = (
        "import sys, numpy; from logprobe.collectors.correction import CorrectionConfig, correct;"
        "x = numpy.full((2, 3), -1.0); correct(CorrectionConfig(is_level='token'), x, x).report['tokens'];"
        "print('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"
