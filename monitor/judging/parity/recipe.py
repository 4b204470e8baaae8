"""A parity recipe: requirements on facts of a run, read from YAML. ``parity.yaml`` is the shipped one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from logprobe.collectors.errors import ConfigurationError
from logprobe.monitor.judging.document import Layer
from logprobe.monitor.judging.parity.facts import Facts
from logprobe.monitor.settings import limits, yaml_text

Outcome: TypeAlias = Literal["met", "violated", "unknown"]

_SAME: Final = "same"  # in an alternative: facts that must agree with each other


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Requirement(_Part):
    """One requirement. All facts of at least one alternative in `any` must hold."""

    name: str
    layer: Layer
    any: tuple[dict[str, Any], ...] = Field(min_length=1)
    why: str
    fix: str

    @property
    def facts(self) -> tuple[str, ...]:
        """Names of the required facts, in the order of the recipe."""
        names: dict[str, None] = {}
        for alternative in self.any:
            for name, wanted in alternative.items():
                names.update(dict.fromkeys(wanted if name == _SAME else [name]))
        return tuple(names)

    @property
    def words(self) -> str:
        """Description of the requirement."""
        return "; or ".join(_words(alternative) for alternative in self.any)

    def outcome(self, facts: Facts) -> Outcome:
        """Return whether the requirement is met, or unknown if a decisive fact is unknown."""
        outcomes = [_alternative(alternative, facts) for alternative in self.any]
        return next((outcome for outcome in ("met", "unknown") if outcome in outcomes), "violated")


class Band(_Part):
    """Tolerance around the reference's values of a metric. Exactly one of `factor` and `fraction` is set.

    Attributes:
        metric: key in the catalog.
        label: name of the metric for users.
        factor: ratio above 1 for a comparison of logarithms.
        fraction: fraction of the largest level of the reference.
        floor: minimum for `factor`, to which smaller values are raised.
        side: side of the reference on which a departure counts.
    """

    metric: str
    label: str
    factor: float | None = Field(default=None, gt=1)
    fraction: float | None = Field(default=None, gt=0)
    floor: float = Field(default=1e-12, gt=0)
    side: Literal["above", "below", "both"] = "both"


class Recipe(_Part):
    """Requirements of parity, see the head of ``parity.yaml``."""

    requirements: tuple[Requirement, ...] = ()
    same: tuple[str, ...] = ()
    trajectories: tuple[Band, ...] = ()

    @property
    def relevant(self) -> tuple[str, ...]:
        """Facts that parity depends on, in the order of the recipe."""
        names = [name for requirement in self.requirements for name in requirement.facts]
        return tuple(dict.fromkeys([*names, *self.same]))


@cache
def shipped() -> Recipe:
    """Return the recipe that comes with logprobe."""
    return _parsed(
        files("logprobe.monitor.judging.parity").joinpath("parity.yaml").read_text(encoding="utf-8"), "parity.yaml"
    )


def read(path: Path) -> Recipe:
    """Read a user's recipe. Raises `ConfigurationError` if it cannot be read or is invalid."""
    try:
        text = limits.read_text(path, limits.SETTINGS)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"cannot read the recipe {path}: {error}; check the path") from error
    return _parsed(text, str(path))


def _parsed(text: str, name: str) -> Recipe:
    try:
        recipe = Recipe.model_validate(yaml_text.plain(text, name))
    except yaml.YAMLError as error:
        raise ConfigurationError(f"{name} is invalid YAML ({' '.join(str(error).split())}); correct it") from error
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"])) or "its top"
        raise ConfigurationError(
            f"{name} is not a parity recipe: {place}: {first['msg']}; see docs/compare.md"
        ) from error
    for band in recipe.trajectories:
        if (band.factor is None) == (band.fraction is None):
            raise ConfigurationError(f"{name}: {band.metric} needs either factor or fraction; see docs/compare.md")
    return recipe


def _words(alternative: Mapping[str, Any]) -> str:
    """Return the facts and their required values as text.

    >>> _words({"sampling.top_p": 1, "sampling.top_k": [0, -1]})
    'sampling.top_p = 1, sampling.top_k = 0 or -1'
    """
    parts = []
    for name, wanted in alternative.items():
        values = " or ".join(map(spoken, wanted)) if isinstance(wanted, list) else spoken(wanted)
        parts.append(" = ".join(wanted) if name == _SAME else f"{name} = {values}")
    return ", ".join(parts)


def spoken(value: Any) -> str:
    """Return a value as text, with null and booleans in YAML notation."""
    return "none" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def _alternative(alternative: Mapping[str, Any], facts: Facts) -> Outcome:
    outcomes = list(_parts(alternative, facts))
    return next((outcome for outcome in ("violated", "unknown") if outcome in outcomes), "met")


def _parts(alternative: Mapping[str, Any], facts: Facts) -> Iterator[Outcome]:
    for name, wanted in alternative.items():
        if name == _SAME:
            yield _agreement([facts.get(fact) for fact in wanted])
        elif name not in facts:
            yield "unknown"
        else:
            allowed = wanted if isinstance(wanted, list) else [wanted]
            yield "met" if all(value in allowed for value in facts[name]) else "violated"


def _agreement(values: list[tuple[Any, ...] | None]) -> Outcome:
    if any(value is None or None in value for value in values):
        return "unknown"
    distinct = {repr(item) for value in values for item in value or ()}
    return "met" if len(distinct) == 1 else "violated"
