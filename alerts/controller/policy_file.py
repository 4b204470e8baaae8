"""The policy of a home: the section ``correction`` of its settings, over the defaults.

correction:
  mode: suggest            # off | suggest | armed
  max_masked_share: 0.2
  correction:              # fields of CorrectionConfig, or `preset: NAME` and changes to it
    is_level: token
    is_mode: mask
    is_lower: 0.5
    is_upper: 5.0
  runs:                    # what differs for single runs; the last match counts
    - match: "prod-*"
      mode: armed
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from difflib import get_close_matches
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Final

from logprobe.alerts.controller import before_after
from logprobe.alerts.controller.policy import Mode, Policy
from logprobe.collectors.correction import CorrectionConfig
from logprobe.collectors.correction.presets import preset
from logprobe.collectors.errors import ConfigurationError
from logprobe.monitor import located, settings_file
from logprobe.monitor.located import Entries, Table

SECTION: Final = "correction"
_FIELDS: Final = tuple(entry.name for entry in fields(Policy))
_SHARES: Final = ("max_masked_share", "min_coverage", "min_confidence", "min_weight_ess", "rollback_margin")
_AT_LEAST: Final = {"notice_steps": 1, "ack_steps": 1, "effect_steps": before_after.FEWEST, "rollback_factor": 1}


@dataclass(frozen=True, slots=True)
class Policies:
    """The policy of each run."""

    default: Policy = field(default_factory=Policy)
    runs: tuple[tuple[str, Policy], ...] = ()  # pattern of the run's name, policy

    def __call__(self, run: str) -> Policy:
        """The policy of `run`."""
        return next((policy for match, policy in reversed(self.runs) if fnmatchcase(run, match)), self.default)


def load(home: Path) -> Policies:
    """The policies of a home. Raises `ConfigurationError` that names file and line."""
    section = settings_file.section(home, SECTION)
    return Policies() if section is None else of_section(section)


def of_section(table: Table | Entries) -> Policies:
    """Policies as a section says. Raises `ConfigurationError`."""
    if isinstance(table, Entries):
        raise ConfigurationError(f"{table.place}: `{SECTION}` must be a mapping, such as `mode: suggest`")
    default = _policy(table, Policy(), extra=("runs",))
    return Policies(default, tuple(_for_runs(entry, default) for entry in located.items(table, "runs")))


def _for_runs(table: Table, default: Policy) -> tuple[str, Policy]:
    match = table.values.get("match")
    if not isinstance(match, str):
        raise ConfigurationError(f'{table.place}: an entry of `runs` needs a `match`, such as "prod-*"')
    return match, _policy(table, default, extra=("match",))


def _policy(table: Table, base: Policy, *, extra: tuple[str, ...]) -> Policy:
    changes: dict[str, Any] = {}
    for key, value in table.values.items():
        if key in extra:
            continue
        try:
            changes[key] = _value(key, value, base)
        except ConfigurationError as error:
            raise ConfigurationError(f"{table.places[key]}: {error}") from error
    return replace(base, **changes)


def _value(key: str, value: Any, base: Policy) -> Any:
    if key not in _FIELDS:
        near = get_close_matches(key, _FIELDS, n=1)
        raise ConfigurationError(
            f"unknown key {key!r}; " + (f"did you mean {near[0]!r}?" if near else f"there are {', '.join(_FIELDS)}")
        )
    if key == "mode":
        return _mode(value)
    if key == "correction":
        return _correction(located.plain(value))
    return _number(key, value, getattr(base, key))


def _mode(value: Any) -> Mode:
    # YAML 1.1 reads a bare `off` as false.
    word = "off" if value is False else value
    if word not in list(Mode):
        raise ConfigurationError(f"`mode`: {value!r} is none of {', '.join(Mode)}")
    return Mode(word)


def _correction(value: Any) -> CorrectionConfig:
    if not isinstance(value, Mapping):
        raise ConfigurationError("`correction`: expected its fields, or `preset: NAME`")
    changes = dict(value)
    name = changes.pop("preset", None)
    config = CorrectionConfig.from_dict(changes) if name is None else preset(str(name), **changes)
    if config.is_level is None and config.rs_level is None and config.veto is None:
        raise ConfigurationError("`correction`: this would correct nothing; set `is_level` or `rs_level`")
    return config


def _number(key: str, value: Any, default: Any) -> Any:
    """A value of the default's own kind: a switch, a count of steps, or a number."""
    if type(default) is bool:
        good = type(value) is bool
    elif type(default) is int:
        good = type(value) is int and value >= 0
    else:
        good = type(value) in {int, float} and math.isfinite(value) and value >= 0
    if good and key in _SHARES and value > 1:
        raise ConfigurationError(f"`{key}`: {value!r}; a share of 1 is expected, such as {default}")
    if good and value < _AT_LEAST.get(key, 0):
        raise ConfigurationError(f"`{key}`: {value!r}; {_AT_LEAST[key]} or more is expected")
    if not good:
        kind = {bool: "true or false", int: "a whole number ≥ 0"}.get(type(default), "a number ≥ 0")
        raise ConfigurationError(f"`{key}`: {value!r}; {kind} is expected")
    return value
