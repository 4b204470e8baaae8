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

from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Final

from pydantic import TypeAdapter

from logprobe.alerts.controller.policy import Policy
from logprobe.collectors.errors import ConfigurationError
from logprobe.monitor import located, settings_file
from logprobe.monitor.located import Entries, Table

SECTION: Final = "correction"
_KIND: Final = TypeAdapter(Policy)


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


def of_section(section: Table | Entries) -> Policies:
    """Policies as a section says. Raises `ConfigurationError`."""
    if isinstance(section, Entries):
        raise ConfigurationError(f"{section.place}: `{SECTION}` must be a mapping, such as `mode: suggest`")
    common = _without(section, "runs")
    runs = tuple(_for_runs(entry, common) for entry in located.items(section, "runs"))
    return Policies(settings_file.checked(common, SECTION, _KIND), runs)


def _for_runs(entry: Table, common: Table) -> tuple[str, Policy]:
    match = entry.values.get("match")
    if not isinstance(match, str):
        raise ConfigurationError(f'{entry.place}: an entry of `runs` needs a `match`, such as "prod-*"')
    return match, settings_file.checked(_without(entry, "match").over(common), SECTION, _KIND)


def _without(table: Table, key: str) -> Table:
    return Table(table.place, {name: value for name, value in table.values.items() if name != key}, table.places)
