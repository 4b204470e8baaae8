"""Flat facts about the setup of a run, which parity recipes refer to.

    engine.<setting>       engine setting, by names common to all versions of vLLM (`logprobe.collectors.vllm.config`)
    effective.<setting>    choice of a worker: attention, dtypes, kernels (`logprobe.collectors.vllm.effective`)
    arguments.<argument>   argument with another value than vLLM's default
    config.<section>.<…>   the rest of vLLM's own configuration
    versions.<package>, environment.<variable>
    sampling.<parameter>   effective sampling params of the requests
    trainer.<key>          as the trainer declared it, nested keys joined by dots
    updates.cache_cleared  "always" | "sometimes" | "never": the prefix cache at weight updates
    updates.pause_mode     treatment of requests in flight

A fact has several values when engines, requests or updates differ. A missing fact is unknown, while null is a value.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from logprobe.monitor import queries
from logprobe.monitor.judging.records import WeightRecord, Weights
from logprobe.monitor.judging.setup import flat, parsed, used
from logprobe.monitor.queries import Source

Facts = Mapping[str, tuple[Any, ...]]

_PREFIX: Final = {"sampling_params": "sampling", "trainer_config": "trainer"}
_ENGINE: Final = {
    "summary": "engine",
    "effective": "effective",
    "arguments": "arguments",
    "config": "config",
    "versions": "versions",
    "environment": "environment",
}
_DTYPES: Final = {"bf16": "bfloat16", "fp16": "float16", "half": "float16", "fp32": "float32", "float": "float32"}
# Where trainers keep the dtype of their output layer; without any of them it has the dtype of the model.
_TRAINER_HEAD: Final = ("trainer.lm_head_dtype", "trainer.head_dtype")


def facts_of(source: Source, run: str) -> Facts:
    """Return all facts of a run. Raises the errors of the source."""
    recorded: dict[str, list[Any]] = {}
    # No column of times below: to make datetimes of them, pyarrow would load pandas.
    configs = queries.diagnosis_configs(source, run=run).drop_columns("time").to_pylist()
    for name, value in _recorded(configs):
        values = recorded.setdefault(name, [])
        if value not in values:
            values.append(value)
    facts = {name: tuple(values) for name, values in recorded.items()}
    rows = queries.diagnosis_weights(source, runs=[run], after=[None]).drop_columns(["run", "time"]).to_pylist()
    records = (WeightRecord(**row) for row in rows)
    return {**facts, **_heads(facts), **_updates(Weights(tuple(records)))}


def _recorded(rows: Iterable[Mapping[str, Any]]) -> Iterator[tuple[str, Any]]:
    """Yield the facts of configuration records. Include unused documents only if none of their kind is used."""
    for kind, some in used(rows).items():
        for row in some:
            for name, value in flat(parsed(row["document"])):
                yield from _placed(kind, name, value)


def _placed(kind: str, name: str, value: Any) -> Iterator[tuple[str, Any]]:
    if kind == "engine_config":
        part, _, rest = name.partition(".")
        if part in _ENGINE:
            yield f"{_ENGINE[part]}.{rest}", _plain(rest, value)
    elif kind in _PREFIX:
        yield f"{_PREFIX[kind]}.{name}", _plain(name, value)


def _plain(name: str, value: Any) -> Any:
    """Return the canonical name of a dtype."""
    return _DTYPES.get(value.lower(), value.lower()) if "dtype" in name and isinstance(value, str) else value


def _heads(facts: Facts) -> dict[str, tuple[Any, ...]]:
    """Return the dtype of the output layer on both sides, by default that of the model."""
    trainer = next((facts[name] for name in _TRAINER_HEAD if name in facts), facts.get("trainer.dtype"))
    engine = facts.get("engine.head_dtype")
    if engine in {None, (None,)} and facts.get("engine.dtype") == ("float32",):
        engine = ("float32",)  # a head is never narrower than its model
    heads = {"engine.head_dtype": engine, "trainer.head_dtype": trainer}
    return {name: value for name, value in heads.items() if value is not None}


def _updates(weights: Weights) -> dict[str, tuple[Any, ...]]:
    kept = weights.kept_cache
    facts: dict[str, tuple[Any, ...]] = {}
    if not math.isnan(kept):
        facts["updates.cache_cleared"] = ("always" if kept == 0 else "never" if kept == 1 else "sometimes",)
    modes = {record.pause_mode for record in weights.updates if record.pause_mode is not None}
    if modes:
        facts["updates.pause_mode"] = tuple(sorted(modes))
    return facts
