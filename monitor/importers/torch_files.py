"""Debug dumps of slime and miles (``torch.save``), read without running any code contained in them."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from logprobe.collectors.errors import ConfigurationError, MissingExtraError
from logprobe.monitor.importers.source import Unit, file_digest

_FORMATS: Final = (1, 2)
# Columns of `rollout_data` in a --save-debug-train-data file, and what a sample calls them.
_TRAIN_COLUMNS: Final = {
    "tokens": "tokens",
    "response_lengths": "response_length",
    "loss_masks": "loss_mask",
    "rollout_log_probs": "rollout_log_probs",
    "log_probs": "log_probs",
    "advantages": "advantages",
    "raw_reward": "reward",
    "sample_indices": "index",
}


def samples(path: Path) -> Iterator[Unit]:
    """A unit per sample of ``--save-debug-rollout-data`` or ``--save-debug-train-data``.

    Raises:
        ConfigurationError: the file holds more than tensors and plain values, or is no such dump.
        MissingExtraError: torch is not installed.
    """
    mark = file_digest(path)
    document = _load(path)
    try:
        samples = list(_kind(document)(document))
    except (KeyError, TypeError, IndexError) as error:
        raise ConfigurationError(
            f"{path}: not a debug dump of slime or miles ({type(error).__name__}: {error})"
        ) from error
    yield from (Unit(mark, sample) for sample in samples)


def _kind(document: Mapping[str, Any]) -> Callable[[Mapping[str, Any]], Iterator[dict[str, object]]]:
    """Training dumps are lists of columns in the first format, and of samples, like rollout dumps, in the second."""
    version = document.get("format_version", 1)
    if version not in _FORMATS:
        raise KeyError(f"format_version {version}; this logprobe reads {', '.join(map(str, _FORMATS))}")
    if version == 2:  # noqa: PLR2004 - slime's own number
        return _training_samples
    return _rollout if "samples" in document else _training


def _load(path: Path) -> Mapping[str, Any]:
    try:
        import torch  # noqa: PLC0415 - only this format needs it
    except ModuleNotFoundError as error:
        raise MissingExtraError(f"{path}: reading it needs torch; pip install 'logprobe[torch]'") from error
    try:
        document = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise ConfigurationError(
            f"{path}: rejected, because loading it would run code contained in the file "
            f"({str(error).splitlines()[0]}); save plain values and tensors only"
        ) from error
    except (RuntimeError, EOFError, OSError, ValueError) as error:
        raise ConfigurationError(f"{path}: not a file of torch.save ({str(error).splitlines()[0]})") from error
    if not isinstance(document, Mapping):
        raise ConfigurationError(f"{path}: not a debug dump of slime or miles (it holds a {type(document).__name__})")
    return document


def _rollout(document: Mapping[str, Any]) -> Iterator[dict[str, object]]:
    for sample in document["samples"]:
        plain = {name: _plain(value) for name, value in sample.items()}
        yield {**plain, "kind": "rollout", "response_length": int(plain["response_length"])}


def _training(document: Mapping[str, Any]) -> Iterator[dict[str, object]]:
    data = document["rollout_data"]
    columns = {ours: data[theirs] for theirs, ours in _TRAIN_COLUMNS.items() if data.get(theirs) is not None}
    common = {"kind": "training", "rollout_id": document["rollout_id"], "rank": document.get("rank")}
    for place in range(len(columns["tokens"])):
        sample = {name: _plain(values[place]) for name, values in columns.items()}
        yield {**common, **sample, "response_length": int(sample["response_length"])}


def _training_samples(document: Mapping[str, Any]) -> Iterator[dict[str, object]]:
    """`raw_reward` is of the whole batch, in the order of the rollout."""
    batch_rewards = document.get("raw_reward")
    for sample in document["samples"]:
        position = sample.get("rollout_position")
        ours = {_TRAIN_COLUMNS.get(name, name): _plain(value) for name, value in sample.items()}
        if batch_rewards is not None and position is not None:
            ours["reward"] = _plain(batch_rewards[int(position)])
        yield {
            **ours,
            "kind": "training",
            "rollout_id": document["rollout_id"],
            "rank": sample.get("data_parallel_rank"),
            "index": sample.get("sample_index"),
            "response_length": int(ours["response_length"]),
        }


def _plain(value: Any) -> Any:
    return value.tolist() if hasattr(value, "tolist") else value
