"""Whether each framework has the settings that `framework_settings.yaml` names: `make campaign NAME=settings`, or

    python setting_names.py FRAMEWORK=FOLDER …        # folders with the source of each, unpacked

Static: nothing of a framework is imported. A dotted name is followed through configuration classes, or through the YAML files that
hydra composes; a flag is looked for in the parsers' source. Exit code 1 where a name is missing.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from logprobe.monitor.judging.named import table

Names = Callable[[Path, str], bool]


def fields(*places: str) -> Names:
    """Names are fields of a class: ``file::Class``; those of its bases in the same files count."""

    def has(folder: Path, name: str) -> bool:
        return any(name in _class_fields(folder, place.partition("::")[2], places) for place in places)

    return has


def tree(root: str, *, file: str) -> Names:
    """Dotted names are followed through classes of one file, from the class `root`, by the annotations of their fields."""

    def has(folder: Path, name: str) -> bool:
        classes, current = _classes(folder / file), root
        for part in name.split("."):
            annotation = dict(_annotated(classes[current])).get(part) if current in classes else None
            if annotation is None:
                return False
            current = next((known for known in re.findall(r"\w+", annotation) if known in classes), "")
        return True

    return has


def yaml_files(*files: str) -> Names:
    """Dotted names are keys of a configuration file."""

    def has(folder: Path, name: str) -> bool:
        return any(_in_document(yaml.safe_load((folder / file).read_text()), name.split(".")) for file in files)

    return has


def flags(*files: str, prefix: str = "") -> Names:
    """Flags, or the fields that become flags behind a prefix, are in the source of the parsers."""

    def has(folder: Path, name: str) -> bool:
        bare = name.removeprefix(prefix)
        forms = [f'"{name}"'] if not prefix else [f"    {bare.replace('-', '_')}: "]
        return any(form in (folder / file).read_text() for file in files for form in forms)

    return has


def used(pattern: str, form: str = " {} ") -> Names:
    """A name that is in some file in this form: one that the framework's own scripts use, or a key."""

    def has(folder: Path, name: str) -> bool:
        return any(form.format(name) in path.read_text() for path in folder.glob(pattern))

    return has


TRANSFORMERS = "transformers/training_args.py::TrainingArguments"
CONFIGURATIONS: dict[str, tuple[Names, ...]] = {
    "trl": (fields("trl/trainer/grpo_config.py::GRPOConfig", TRANSFORMERS),),
    "ms-swift": (
        fields(
            "swift/rlhf_trainers/args_mixin.py::GRPOArgumentsMixin", "swift/rlhf_trainers/args_mixin.py::RolloutTrainerArgumentsMixin",
            "swift/rlhf_trainers/args_mixin.py::VllmArguments", "swift/megatron/arguments/megatron_args.py::RLHFMegatronArgumentsMixin",
            "swift/arguments/base_args/generation_args.py::GenerationArguments", TRANSFORMERS,
        ),
    ),
    "verl": (yaml_files("verl/trainer/config/_generated_ppo_trainer.yaml", "verl/trainer/config/_generated_ppo_megatron_trainer.yaml"),),
    "slime": (
        flags("slime/utils/arguments.py"),
        flags("sglang/srt/server_args.py", prefix="--sglang-"),
        used("scripts/*.sh"),
    ),
    "pipelinerl": (yaml_files("conf/base.yaml"), lambda folder, name: name.startswith("finetune.") and yaml_files(
        "conf/finetune/base.yaml")(folder, name.removeprefix("finetune."))),
    "vllm": (
        fields("vllm/engine/arg_utils.py::EngineArgs", "vllm/sampling_params.py::SamplingParams"),
        lambda folder, name: fields("vllm/engine/arg_utils.py::EngineArgs")(folder, name.partition(".")[0]),
        used("vllm/envs.py", form='"{}": lambda'),
    ),
    "skyrl": (tree("SkyRLTrainConfig", file="skyrl/train/config/config.py"),),
}  # fmt: skip
# Where a framework hands vLLM's arguments on.
HANDED_ON = {"ms-swift": "vllm_engine_kwargs", "verl": "actor_rollout_ref.rollout.engine_kwargs.vllm", "pipelinerl": "vllm_config.vllm_kwargs",
             "skyrl": "generator.inference_engine.engine_init_kwargs"}  # fmt: skip


def missing(framework: str, folder: Path) -> list[str]:
    """Names that the framework's source does not have."""
    settings = [entry["name"] for entries in table()[framework]["causes"].values() for entry in entries]
    names = dict.fromkeys([*settings, *([HANDED_ON[framework]] if framework in HANDED_ON else [])])
    return [name for name in names if not any(has(folder, name) for has in CONFIGURATIONS[framework])]


def named_again(framework: str) -> bool:
    """Whether the table's form for vLLM's arguments begins with the place that is checked."""
    return HANDED_ON.get(framework, "") in table()[framework].get("engine", "")


@cache
def _classes(path: Path) -> dict[str, ast.ClassDef]:
    return {node.name: node for node in ast.parse(path.read_text()).body if isinstance(node, ast.ClassDef)}


def _annotated(node: ast.ClassDef) -> Iterator[tuple[str, str]]:
    for line in node.body:
        if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name):
            yield line.target.id, ast.unparse(line.annotation)


def _class_fields(folder: Path, name: str, places: tuple[str, ...]) -> set[str]:
    files = {place.partition("::")[0] for place in places if (folder / place.partition("::")[0]).exists()}
    return {
        field
        for file in files
        for known, node in _classes(folder / file).items()
        if known == name
        for field, _ in _annotated(node)
    }


def _in_document(document: Any, parts: list[str]) -> bool:
    for part in parts:
        if not isinstance(document, dict) or part not in document:
            return False
        document = document[part]
    return True


def main(arguments: list[str]) -> int:
    """Prints what is missing."""
    wrong = 0
    for argument in arguments:
        framework, _, folder = argument.partition("=")
        lacking = missing(framework, Path(folder)) + (
            [] if named_again(framework) else ["the form for vLLM's arguments"]
        )
        wrong += len(lacking)
        print(f"{framework}: {', '.join(lacking) or 'all names are there'}")
    unchecked = set(CONFIGURATIONS) - {argument.partition("=")[0] for argument in arguments}
    if unchecked:
        print(f"not checked: {', '.join(sorted(unchecked))}")
    return min(wrong, 1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
