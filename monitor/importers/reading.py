"""Parser of files with log-probs, record by record. A file cannot change its limits (`monitor.settings.limits`).

An unreadable JSON line is skipped. An unreadable Parquet or torch file is refused as a whole. The kernel enforces a
memory limit, since Parquet and pickles can expand a million times. No code in a file is executed.
"""

from __future__ import annotations

import json
import pickle
import re
import resource
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeAlias

import pyarrow as pa
import pyarrow.parquet as pq

from logprobe.collectors.errors import ConfigurationError, MissingExtraError
from logprobe.monitor.settings import limits

_SLICE_BYTES: Final = 16 << 20  # of Arrow data that becomes Python values at once
_USED: Final = re.compile(r"VmData:\s+(\d+) kB")
_SHOWN: Final = 60  # bytes of a line that is not valid JSON
_DUMP_FORMATS: Final = (1, 2)
_GLOBAL: Final = re.compile(r"GLOBAL ([\w.]+)")
# First bytes of other formats than JSON lines, with what to do.
_OTHER_FORMATS: Final = {
    b"\x1f\x8b": "it is compressed by gzip; unpack it",
    b"\x28\xb5\x2f\xfd": "it is compressed by zstd; unpack it",
    b"BZh": "it is compressed by bzip2; unpack it",
    b"\xfd7zXZ": "it is compressed by xz; unpack it",
    b"PK\x03\x04": "it is a zip archive, as .npz and .pt are; unpack it, or write Parquet",
    b"\xff\xff\xff\xff": "it is an Arrow stream; write Parquet",
    b"ARROW1": "it is an Arrow file; write Parquet",
    b"PAR1": "it is Parquet; rename it to .parquet",
    b"\x80": "it is a pickle; write Parquet",
    b"\xff\xfe": "its text is UTF-16; save it as UTF-8",
    b"\xfe\xff": "its text is UTF-16; save it as UTF-8",
    b"[": "it is one JSON array; write one record per line",
}
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


Sample: TypeAlias = Mapping[str, Any]  # columns of a debug dump, by the names of `frameworks`


@dataclass(frozen=True, slots=True)
class Unit:
    """Line, row or sample of a file. `error`: reason for a missing value."""

    value: Mapping[str, Any] | None = None
    error: str | None = None


def units(path: Path) -> Iterator[Unit]:
    """Read a file as Parquet (.parquet), torch (.pt) or else JSON lines. Raises `ConfigurationError`,
    `MissingExtraError`.
    """
    try:
        if path.suffix == ".parquet":
            yield from (Unit(row) for batch in _batches(path) for row in batch.to_pylist())
        elif path.suffix == ".pt":
            yield from map(Unit, _torch_samples(path))
        else:
            yield from _json_lines(path)
    except OSError as error:
        raise ConfigurationError(f"{path}: cannot be read ({error.strerror or error}); check the file") from error


def other_format(path: Path) -> str | None:
    """Return the other format that a file begins with, and what to do, or None if unknown."""
    if path.suffix in (".parquet", ".pt"):
        return None
    with path.open("rb") as file:
        head = file.read(8)
    return next((words for start, words in _OTHER_FORMATS.items() if head.startswith(start)), None)


@contextmanager
def memory_limit(path: Path) -> Iterator[None]:
    """Raise `ConfigurationError` if reading `path` takes more memory than allowed. The limit counts data, without
    mapped files.
    """
    before, pool = resource.getrlimit(resource.RLIMIT_DATA), pa.default_memory_pool()
    used = _USED.search(Path("/proc/self/status").read_text(encoding="ascii")) if sys.platform == "linux" else None
    try:
        if used is not None:
            pa.set_memory_pool(pa.system_memory_pool())  # others reserve memory for later, which counts as taken
            most = int(used[1]) * 1024 + limits.IMPORT_MEMORY.value
            hard = before[1] if before[1] != resource.RLIM_INFINITY else most
            resource.setrlimit(resource.RLIMIT_DATA, (min(most, hard), before[1]))
        yield
    except MemoryError as error:  # pyarrow's is one too
        raise limits.IMPORT_MEMORY.exceeded(f"{path}: reading it took more memory than allowed") from error
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, before)
        pa.set_memory_pool(pool)


def most_bytes(path: Path) -> int:
    """Return the maximum expanded size of a file."""
    return max(limits.IMPORT_FREE.value, limits.IMPORT_EXPANSION.value * path.stat().st_size)


def expanded(path: Path) -> ConfigurationError:
    """Return the error of a file that expands to more than `most_bytes`."""
    return limits.IMPORT_EXPANSION.exceeded(
        f"{path} has {path.stat().st_size:,} bytes and expands to more than {most_bytes(path):,}"
    )


def _batches(path: Path) -> Iterator[pa.RecordBatch]:
    try:
        with pq.ParquetFile(path) as file:
            yield from small_batches(file)
    except pa.ArrowMemoryError:
        raise
    except (pa.ArrowException, OSError) as error:
        raise ConfigurationError(f"{path}: cannot be read as Parquet ({error}); copy the file again") from error


def small_batches(file: pq.ParquetFile) -> Iterator[pa.RecordBatch]:
    """Read the rows of a file in batches bounded by size. Dictionaries are excluded, since one text can represent
    millions.
    """
    for batch in map(_decoded, file.iter_batches(batch_size=256, use_threads=False)):
        rows = max(1, _SLICE_BYTES * batch.num_rows // max(1, batch.nbytes))
        yield from (batch.slice(first, rows) for first in range(0, batch.num_rows, rows))


def _decoded(batch: pa.RecordBatch) -> pa.RecordBatch:
    columns = [
        column.dictionary_decode() if pa.types.is_dictionary(column.type) else column for column in batch.columns
    ]
    return pa.RecordBatch.from_arrays(columns, batch.schema.names)


def _json_lines(path: Path) -> Iterator[Unit]:
    """Yield the lines as units. Omit an incomplete last line that is still being written."""
    with path.open("rb") as file:
        for line, wrong in limits.lines(file):
            unit = Unit(error=wrong) if wrong is not None else _json_line(line)
            if line.endswith(b"\n") or unit.error is None:
                yield unit


def _json_line(line: bytes) -> Unit:
    if not line.strip():
        return Unit(error="an empty line")
    try:
        value = json.loads(line.decode("utf-8-sig"))  # of bytes, it would guess the encoding line by line
    except (ValueError, RecursionError) as error:
        return Unit(error=f"invalid JSON ({error}): {line[:_SHOWN].decode(errors='replace').strip()!r}")
    return Unit(value) if isinstance(value, dict) else Unit(error="not a JSON object")


def _torch_samples(path: Path) -> Iterator[Sample]:
    """Read the samples of ``--save-debug-rollout-data`` or ``--save-debug-train-data`` of slime or miles. The column
    ``kind`` distinguishes the two.

    Raises:
        ConfigurationError: the file has more than tensors and plain values, or is not a dump.
        MissingExtraError: torch is not installed.
    """
    document = _load(path)
    if f"eval_{document.get('rollout_id')}" in path.name:
        raise ConfigurationError(
            f"{path} is an evaluation, whose samples are numbered like those of training; name the training's files"
        )
    try:
        yield from list(_samples_of(document)(document))
    except (KeyError, TypeError, IndexError, ValueError) as error:
        why = f"it has no {error}" if isinstance(error, KeyError) else str(error)
        raise ConfigurationError(f"{path}: not a debug dump of slime or miles ({why}); check FILE") from error


def _samples_of(document: Mapping[str, Any]) -> Callable[[Mapping[str, Any]], Iterator[Sample]]:
    """Return the function that yields a dump's samples.

    A training dump lists columns in the first format and samples in the second. A rollout dump always lists samples.
    """
    version = document.get("format_version", 1)
    if version not in _DUMP_FORMATS:
        raise ValueError(f"format_version {version}; this logprobe reads {', '.join(map(str, _DUMP_FORMATS))}")
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
        named = _GLOBAL.search(str(error))
        raise ConfigurationError(
            f"{path}: rejected, because loading it would run code contained in the file"
            f"{f' ({named[1]})' if named else ''}; save plain values and tensors only"
        ) from error
    except (RuntimeError, EOFError, OSError, ValueError) as error:
        raise ConfigurationError(
            f"{path}: not a file of torch.save ({str(error).splitlines()[0]}); copy the file again"
        ) from error
    if not isinstance(document, Mapping):
        raise ConfigurationError(
            f"{path}: not a debug dump of slime or miles (it holds a {type(document).__name__}); check FILE"
        )
    return document


def _rollout(document: Mapping[str, Any]) -> Iterator[Sample]:
    for sample in document["samples"]:
        plain = {name: _plain(value) for name, value in sample.items()}
        yield {**plain, "kind": "rollout", "response_length": int(plain["response_length"])}


def _training(document: Mapping[str, Any]) -> Iterator[Sample]:
    data = document["rollout_data"]
    columns = {ours: data[theirs] for theirs, ours in _TRAIN_COLUMNS.items() if data.get(theirs) is not None}
    common = {"kind": "training", "rollout_id": document["rollout_id"], "rank": document.get("rank")}
    for place in range(len(columns["tokens"])):
        sample = {name: _plain(values[place]) for name, values in columns.items()}
        yield {**common, **sample, "response_length": int(sample["response_length"])}


def _training_samples(document: Mapping[str, Any]) -> Iterator[Sample]:
    """Yield the samples of a training dump. `raw_reward` covers the whole batch in rollout order."""
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
