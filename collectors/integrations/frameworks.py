"""Frameworks that logprobe records, and the integration of each.

The module imports no framework, and no adapter before its framework.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any, Final, Literal

from logprobe.collectors.integrations.imports import when_imported
from logprobe.collectors.integrations.wrapping import WATCHED, Process

SITE: Final = str(Path(__file__).with_name("site"))  # a folder that Python looks into when it starts
_PACKAGE: Final = "logprobe.collectors.integrations"
_TRL: Final = {  # module → its trainer
    "trl.trainer.grpo_trainer": "GRPOTrainer",
    "trl.trainer.rloo_trainer": "RLOOTrainer",
    "trl.experimental.async_grpo.async_grpo_trainer": "AsyncGRPOTrainer",
}


@dataclass(frozen=True)
class Framework:
    """Training or inference framework that logprobe records.

    Attributes:
        name: name in text for users.
        distributions: package names under which it may be installed.
        verified: versions tested with the adapter, as prefixes.
        way: integration. "plugin": entry point. "run": `logprobe run`, or the steps in `words`. "options": the steps in
            `words`.
        words: steps for the user, or "" if none are required.
        hooks: module of the framework → function of logprobe, ``module:name``, that `logprobe run` calls after its
            import.
    """

    name: str
    distributions: tuple[str, ...]
    verified: tuple[str, ...]
    way: Literal["plugin", "run", "options"]
    words: str = ""
    hooks: dict[str, str] = field(default_factory=dict)


FRAMEWORKS: Final = (
    Framework("TRL", ("trl",), ("1.16",), "run", "trl.watch(trainer)", dict.fromkeys(_TRL, "known:trl")),
    Framework("ms-swift", ("ms-swift",), ("4.6",), "options", "--external_plugins … --callbacks logprobe"),
    Framework("verl", ("verl",), ("0.9",), "plugin", "", {
        "verl.trainer.ppo.ray_trainer": "verl:register_from",
        "verl.trainer.ppo.v1.trainer_base": "verl:register_from"}),
    Framework("SkyRL", ("skyrl", "skyrl-train"), ("0.3",), "run", "trainer.add_callback(skyrl.callback())", {
        "skyrl.train.trainer": "known:skyrl"}),
    Framework("slime", (), (), "options", "three options"),
    Framework("miles", ("miles-rl",), (), "options", "three options"),
    Framework("vime", ("vime",), (), "options", "three options"),
    Framework("OpenRLHF", ("openrlhf",), ("0.11",), "run", "", {
        "openrlhf.trainer.ppo_trainer": "wrapped:openrlhf_trainer",
        "openrlhf.trainer.ppo_utils.experience_maker": "wrapped:openrlhf"}),
    Framework("AReaL", ("areal",), ("1.0",), "run", "", {"areal.trainer.ppo.actor": "wrapped:areal"}),
    Framework("ROLL", ("roll",), (), "run", "", {"roll.utils.train_infer_corrections": "wrapped:roll"}),
    Framework("rllm", ("rllm",), (), "run", "", {"rllm.trainer.verl.verl_backend": "wrapped:rllm"}),
    Framework("PipelineRL", ("pipelinerl",), ("0.1",), "run", "", {
        "pipelinerl.world": "pipelinerl:world", "pipelinerl.finetune.rl": "pipelinerl:loss",
        "pipelinerl.finetune.logging_": "pipelinerl:scalars", "pipelinerl.finetune_loop": "pipelinerl:weights"}),
    Framework("SGLang", ("sglang",), ("0.5",), "plugin"),
)  # fmt: skip


def install() -> None:
    """Install hooks that record every framework that this process imports later, each once."""
    for framework in FRAMEWORKS:
        for module, function in framework.hooks.items():
            when_imported(module, _action(function))


def python_path(environment: Mapping[str, str]) -> str:
    """Return ``PYTHONPATH`` preceded by logprobe's folder, which installs the hooks in all Python child processes."""
    others = [path for path in environment.get("PYTHONPATH", "").split(os.pathsep) if path not in {"", SITE}]
    return os.pathsep.join([SITE, *others])


def hooked(environment: Mapping[str, str]) -> bool:
    """Return whether processes of this environment install the hooks when they start."""
    on_path = SITE in environment.get("PYTHONPATH", "").split(os.pathsep)
    return on_path and bool(environment.get("LOGPROBE_HOME"))


def _action(place: str) -> Any:
    module, _, name = place.partition(":")

    def act(imported: ModuleType) -> None:
        getattr(importlib.import_module(f"{_PACKAGE}.{module}"), name)(imported)

    return act


def trl(module: ModuleType) -> None:
    """Call `trl.watch(trainer)` at the first `trainer.train()`."""
    from logprobe.collectors.integrations import trl as adapter  # noqa: PLC0415 - only where TRL is

    def begin(host: Any, *_: Any, **__: Any) -> None:
        if not hasattr(host, WATCHED):
            adapter.watch(host)

    Process("trl").before(getattr(module, _TRL[module.__name__]), "train", begin)


def skyrl(module: ModuleType) -> None:
    """Add a callback to every new trainer."""
    from logprobe.collectors.integrations import skyrl as adapter  # noqa: PLC0415 - only where SkyRL is

    def made(_: Any, host: Any, *__: Any, **___: Any) -> None:
        host.add_callback(adapter.callback())

    Process("skyrl").after(module.RayPPOTrainer, "__init__", made)
