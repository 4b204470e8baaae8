"""What vLLM does when nothing is set: defaults by version, as ``vllm_defaults.yaml`` beside this file has them.

    python -m logprobe.monitor.judging.parity_defaults        # adds the installed vLLM's to the file

A default of null means that vLLM decides, by model and hardware. Versions that are not in the file are not guessed.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Collection, Mapping
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, Final

import yaml

_FILE: Final = "vllm_defaults.yaml"
# Fact → field of vLLM's EngineArgs. What an engine resolves in its own ways (a model's length, its tokenizer) is not
# here.
_FIELDS: Final = {
    **{
        f"engine.{name}": name
        for name in (
            "logprobs_mode",
            "enable_prefix_caching",
            "async_scheduling",
            "dtype",
            "quantization",
            "kv_cache_dtype",
            "generation_config",
            "enforce_eager",
            "enable_chunked_prefill",
            "max_num_batched_tokens",
            "max_num_seqs",
            "block_size",
            "tensor_parallel_size",
            "pipeline_parallel_size",
            "data_parallel_size",
            "enable_expert_parallel",
            "attention_backend",
            "load_format",
            "seed",
        )
    },
    "config.model_config.disable_cascade_attn": "disable_cascade_attn",
}


@cache
def _table() -> Mapping[str, Mapping[str, Any]]:
    return dict(yaml.safe_load(files("logprobe.monitor.judging").joinpath(_FILE).read_text(encoding="utf-8")))


def provenance(fact: str, value: Any, version: str | None, given: Collection[str] | None = None) -> str | None:
    """Whether someone set it: "unset: default of vLLM 0.32.0", "set; …"; None for what is no setting of vLLM.

    Args:
        fact: see `parity_facts`.
        value: what it is.
        version: of vLLM.
        given: arguments that the engine was started with, where that was recorded; None: a value equal to the default
            counts as the default.
    """
    if fact not in _FIELDS:
        return None
    defaults = _table().get(version or "")
    if given is not None:
        default = None if defaults is None else defaults[fact]
        return _recorded(given=_FIELDS[fact] in given, value=value, default=default, version=version)
    if defaults is None:
        return (
            "the version of vLLM was not recorded" if version is None else f"defaults of vLLM {version} are not known"
        )
    default = defaults[fact]
    if value == default:
        return f"unset: default of vLLM {version}"
    if default in {None, "auto"}:
        return f"set, or chosen by vLLM {version}"
    return f"set; default of vLLM {version}: {default}"


def _recorded(*, given: bool, value: Any, default: Any, version: str | None) -> str:
    """Where it is known what was given; a default of None or "auto" leaves the choice to vLLM."""
    if given:
        return "set" if default in {None, "auto"} else f"set; default of vLLM {version}: {default}"
    of = "vLLM, whose version was not recorded" if version is None else f"vLLM {version}"
    return f"unset: {'default of' if value == default else 'chosen by'} {of}"


def installed() -> tuple[str, dict[str, object]]:
    """Version and defaults of the vLLM that is installed here. Raises `ModuleNotFoundError` without one."""
    import vllm  # noqa: PLC0415 - heavy, and only on a machine with an engine
    from vllm.engine.arg_utils import EngineArgs  # noqa: PLC0415

    fields = {field.name: field.default for field in dataclasses.fields(EngineArgs)}
    return str(vllm.__version__), {fact: fields[name] for fact, name in _FIELDS.items()}


def main() -> int:
    """Adds the installed vLLM's defaults to the file."""
    version, defaults = installed()
    path = Path(__file__).with_name(_FILE)
    by_version = {**_table(), version: defaults}
    head = path.read_text(encoding="utf-8").partition("\n\n")[0]
    path.write_text(f"{head}\n\n{yaml.safe_dump(by_version, sort_keys=False)}", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
