"""Setup of a repeated scoring: checkpoints, engine, trainer, and the recorded engine's settings."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from logprobe.collectors.errors import ConfigurationError
from logprobe.monitor.proof.recorded_sample import RecordedSample

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
        models: checkpoints by weight version; under "" the one for sequences that name no version.
        arguments: of the engine, as `vllm serve` takes them.
        overrides: fields of vLLM's `EngineArgs` on top of them.
        environment: variables of the engine's process.
        trainer: ``module:function``; None: t′ is not scored.
        trainer_settings: its keyword arguments.
        dtype: of the reference, "float32" or "float64".
        seconds: limit of each scorer's process.
        recorded: settings that the engine which sampled ran with, by the names that engines report; empty: not
            recorded.
        not_repeated: settings of it that a fresh engine cannot be given.
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

    def recorded_as(self, sample: RecordedSample) -> Setup:
        """Return the setup with the recorded engine. Arguments given by hand take precedence."""
        words = {word.partition("=")[0].lstrip("-").replace("-", "_") for word in self.arguments.split()}
        given = words | {word.removeprefix("no_") for word in words}
        kept, settings = (
            {name: value for name, value in of.items() if name not in given}
            for of in (sample.overrides, sample.settings)
        )
        lost = tuple(name for name in sample.not_repeated if name not in given)
        return replace(self, overrides=kept, environment=sample.environment, recorded=settings, not_repeated=lost)

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
    """`models`, where each is a checkpoint. Raises `ConfigurationError`."""
    if not models:
        raise ConfigurationError("no checkpoint: pass --model PATH, or --model VERSION=PATH once per weight version")
    for path in models.values():
        if not (path / "config.json").is_file():
            raise ConfigurationError(f"{path}: no config.json; --model takes the folder of a Hugging Face checkpoint")
    return models


def settings_of(text: str | None) -> dict[str, object]:
    """Keyword arguments of a trainer's function, as a JSON object. Raises `ConfigurationError`."""
    if text is None:
        return {}
    try:
        settings = json.loads(text)
    except ValueError as error:
        raise ConfigurationError(f"--trainer-args: invalid JSON ({error}); write an object such as {{}}") from error
    if not isinstance(settings, dict):
        raise ConfigurationError(f"--trainer-args: {text!r} is not a JSON object")
    return settings
