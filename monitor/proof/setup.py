"""Setup of a repeated scoring: checkpoints, engine, trainer, and the recorded engine's settings."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from logprobe.collectors.errors import ConfigurationError

# Of an engine's reported settings: those that do not reach a log-prob, or belong to the checkpoint.
_INCIDENTAL: Final = frozenset(
    {
        "model", "tokenizer", "seed", "generation_config", "override_generation_config", "data_parallel_size", "runner",
        "weight_transfer_backend", "load_format", "architectures", "checkpoint_dtype",
    }
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Setup:
    """Inputs of a repeated scoring.

    Attributes:
        models: checkpoints by weight version, with "" for sequences without a version.
        arguments: arguments of the engine in the form of `vllm serve`.
        overrides: fields of vLLM's `EngineArgs` that override `arguments`.
        environment: variables of the engine's process.
        trainer: ``module:function``, or None to omit t′.
        trainer_settings: keyword arguments of the trainer's function.
        dtype: type of the reference, "float32" or "float64".
        seconds: time limit of each scorer's process.
        recorded: settings of the engine that sampled, by the names that engines report, empty if not recorded.
        not_repeated: recorded settings that a fresh engine does not accept.
    """

    models: Mapping[str, Path]
    arguments: str = ""
    overrides: Mapping[str, Any] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    trainer: str | None = None
    trainer_settings: Mapping[str, Any] = field(default_factory=dict)
    dtype: str = "float32"
    seconds: float = 900.0
    recorded: Mapping[str, Any] = field(default_factory=dict)
    not_repeated: tuple[str, ...] = ()

    def recorded_as(
        self,
        overrides: Mapping[str, Any],
        settings: Mapping[str, Any],
        environment: Mapping[str, str],
        not_repeated: Collection[str],
    ) -> Setup:
        """Return the setup with the recorded engine, in the form of its attributes. Explicit arguments take
        precedence.
        """
        words = {word.partition("=")[0].lstrip("-").replace("-", "_") for word in self.arguments.split()}
        given = words | {word.removeprefix("no_") for word in words}
        kept, recorded = (
            {name: value for name, value in of.items() if name not in given} for of in (overrides, settings)
        )
        lost = tuple(name for name in not_repeated if name not in given)
        return replace(self, overrides=kept, environment=environment, recorded=recorded, not_repeated=lost)

    def unlike(self, settings: Mapping[str, Any], changed: Collection[str] = ()) -> tuple[str, ...]:
        """Return the settings in which a fresh engine differs from the recorded one, except the intended ones."""
        if not settings:
            return self.not_repeated
        differing = (
            f"{name} ({self.recorded[name]}, here {settings.get(name)})"
            for name in sorted({*self.recorded} - _INCIDENTAL - {*changed})
            if self.recorded[name] != settings.get(name)
        )
        return (*self.not_repeated, *differing)

    def checkpoint(self, version: str | None) -> Path | None:
        """Return the checkpoint of a weight version, or None. A single unnamed one serves for all."""
        if version is not None and version in self.models:
            return self.models[version]
        return self.models.get("") if version is None or set(self.models) == {""} else None


def checked(models: Mapping[str, Path]) -> Mapping[str, Path]:
    """Return `models` if each is a checkpoint. Raises `ConfigurationError` otherwise."""
    if not models:
        raise ConfigurationError("no checkpoint: pass --model PATH, or --model VERSION=PATH once per weight version")
    for path in models.values():
        if not (path / "config.json").is_file():
            raise ConfigurationError(f"{path}: no config.json; --model takes the folder of a Hugging Face checkpoint")
    return models


def settings_of(text: str | None) -> dict[str, object]:
    """Return the keyword arguments of a trainer's function from a JSON object. Raises `ConfigurationError`."""
    if text is None:
        return {}
    try:
        settings = json.loads(text)
    except ValueError as error:
        raise ConfigurationError(f"--trainer-args: invalid JSON ({error}); write an object such as {{}}") from error
    if not isinstance(settings, dict):
        raise ConfigurationError(f"--trainer-args: {text!r} is not a JSON object; write one such as {{}}")
    return settings
