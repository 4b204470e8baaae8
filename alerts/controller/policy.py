"""Policy of the controller: permitted actions and limits, from the section ``correction`` of the settings.

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

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Any, Final, TypeAlias, TypedDict

from pydantic import BeforeValidator, Field, TypeAdapter

from logprobe.collectors.correction import CorrectionConfig
from logprobe.collectors.correction.presets import preset
from logprobe.collectors.errors import ConfigurationError
from logprobe.monitor.settings import located, settings_file
from logprobe.monitor.settings.located import Entries, Table
from logprobe.monitor.settings.settings_file import Settings


class Mode(StrEnum):
    """Behaviour of the controller when it finds that a correction is the right remedy."""

    OFF = "off"  # nothing
    SUGGEST = "suggest"  # says so
    ARMED = "armed"  # switches it on


# Bounds as published with IcePop; tokens outside are masked, and counted.
DEFAULT_CORRECTION: Final = CorrectionConfig(is_level="token", is_mode="mask", is_lower=0.5, is_upper=5.0)


_Share: TypeAlias = Annotated[float, Field(strict=True, ge=0, le=1, allow_inf_nan=False)]  # of 1
_Count: TypeAlias = Annotated[int, Field(strict=True, ge=0)]
_Some: TypeAlias = Annotated[int, Field(strict=True, ge=1)]


def _mode(value: Any) -> Any:
    return "off" if value is False else value  # YAML 1.1 reads a bare `off` as false


def _correction(value: Any) -> CorrectionConfig:
    if isinstance(value, CorrectionConfig):
        return value
    if not isinstance(value, Mapping):
        raise ConfigurationError("no correction here; write its fields, or `preset: NAME`")
    changes = dict(value)
    name = changes.pop("preset", None)
    config = CorrectionConfig.from_dict(changes) if name is None else preset(str(name), **changes)
    if config.is_level is None and config.rs_level is None and config.veto is None:
        raise ConfigurationError("this would correct nothing; set `is_level` or `rs_level`")
    return config


class Policy(Settings):
    """Limits of the controller for one run.

    Shares are between 0 and 1. Durations are optimizer steps.
    """

    mode: Annotated[Mode, BeforeValidator(_mode)] = Mode.SUGGEST
    """off, suggest or armed"""
    correction: Annotated[CorrectionConfig, BeforeValidator(_correction)] = DEFAULT_CORRECTION
    """fields of `CorrectionConfig`, or `preset: NAME` and changes to it"""
    notice_steps: _Some = 5
    """steps between decision and first corrected step, so that all ranks have heard of it"""
    max_masked_share: _Share = 0.2
    """of tokens, of sequences or of |advantage|, in the preview"""
    min_coverage: _Share = 0.99
    """of the last ten steps; below, the controller refuses"""
    cool_down_steps: _Count = 100
    """steps between two switches"""
    max_switches: _Count = 4
    """per run"""


class Stated(TypedDict):
    """Facts about a policy for pages and the command line. `config`: configuration of its correction."""

    mode: str
    config: Mapping[str, Any]


class InForce(Stated):
    """The policy in force. `problem`: why the settings file is not in effect, or None."""

    problem: str | None


def stated(policy: Policy) -> Stated:
    """Return the facts about a policy (see `Stated`)."""
    return {"mode": policy.mode.value, "config": policy.correction.to_dict()}


POLICY: Final = "correction.policy"  # the action that tells it
SECTION: Final = "correction"
_KIND: Final = TypeAdapter(Policy)


@dataclass(frozen=True, slots=True)
class Policies:
    """The policy of each run."""

    default: Policy = field(default_factory=Policy)
    runs: tuple[tuple[str, Policy], ...] = ()  # pattern of the run's name, policy

    def __call__(self, run: str) -> Policy:
        """Return the policy of `run`."""
        return next((policy for match, policy in reversed(self.runs) if fnmatchcase(run, match)), self.default)


def load(home: Path) -> Policies:
    """Return the policies of a data directory. Raise `ConfigurationError` with file and line."""
    section = settings_file.section(home, SECTION)
    return Policies() if section is None else of_section(section)


def of_section(section: Table | Entries) -> Policies:
    """Return the policies of a settings section. Raise `ConfigurationError`."""
    if isinstance(section, Entries):
        raise ConfigurationError(f"{section.place}: `{SECTION}` must be a mapping, such as `mode: suggest`")
    common = _without(section, "runs")
    runs = tuple(_for_runs(entry, common) for entry in located.items(section, "runs"))
    return Policies(settings_file.checked(common, SECTION, _KIND), runs)


def _for_runs(entry: Table, common: Table) -> tuple[str, Policy]:
    match = entry.values.get("match")
    if not isinstance(match, str):
        raise ConfigurationError(f'{entry.place}: an entry of `runs` needs a `match`; add one, such as "prod-*"')
    return match, settings_file.checked(_without(entry, "match").over(common), SECTION, _KIND)


def _without(table: Table, key: str) -> Table:
    return Table(table.place, {name: value for name, value in table.values.items() if name != key}, table.places)
