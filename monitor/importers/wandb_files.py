"""W&B's binary files of a run (``run-<id>.wandb``), as it writes them also without a network; read without W&B, whose
package (0.31) has no reader in Python any more: `wandb sync` reads them in a program of its own.

The file begins with ``:W&B``, a magic number and a version. Then come blocks of 32 KiB with pieces of records, as in
LevelDB's log: each piece has a CRC-32 of its type and content, a length, and a type (whole, first, middle, last); a
block's last bytes are 0 when no header fits. A record is a protobuf ``Record``; its ``history`` (2) holds items (1)
with a key (1) or the parts of a nested one (2), and a value as JSON (16) or, in newer files, typed (5 integer, 6
number). The step is in the item ``_step`` or in the history's own ``step`` (2); both count calls of ``wandb.log``.
Trainers of Hugging Face declare ``train/global_step`` as the step of everything, and W&B adds it to every record of
such a run. Sources: LevelDB's log_format.md; wandb_internal.proto and datastore.py of wandb, checked against files of
wandb 0.31.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO, Final

from logprobe.collectors.errors import ConfigurationError
from logprobe.monitor import limits
from logprobe.monitor.importers.protobuf import fields, signed
from logprobe.monitor.importers.rows import TRAINER_STEP, BadRowError, Row, scalars
from logprobe.monitor.importers.source import Place, Unit

_HEADER: Final = struct.Struct("<4sHB")  # name, magic number, version
_PIECE: Final = struct.Struct("<IHB")  # checksum, length, type
_NAME, _MAGIC, _VERSION = b":W&B", 0xBEE1, 0
_BLOCK: Final = 32_768
_WHOLE, _FIRST, _MIDDLE, _LAST = 1, 2, 3, 4
_HISTORY: Final = 2  # of Record
_ITEM, _STEP = 1, 2  # of HistoryRecord
_KEY, _NESTED, _INTEGER, _NUMBER, _JSON = 1, 2, 5, 6, 16  # of HistoryItem


def records(path: Path) -> Iterator[Unit]:
    """A unit per record of the history. The last one cut short is still being written; a damaged one costs the rest of
    its block.

    Raises `ConfigurationError` when the file is none of W&B's, or of an unknown version.
    """
    with path.open("rb") as file:
        _check(path, file.read(_HEADER.size))
        begun: bytearray | None = None  # of a record whose end has not come; None: nothing, or a beginning that is lost
        for kind, content in _pieces(file):
            if kind == 0:
                begun = None
                yield Unit(content, error="a record is damaged (checksum); the rest of its block cannot be read")
                continue
            if kind in {_WHOLE, _FIRST}:
                begun = bytearray(content)
            elif begun is not None:
                begun += content
            if begun is not None and len(begun) > limits.IMPORT_UNIT.value:
                yield Unit(bytes(begun[:_BLOCK]), error=str(limits.IMPORT_UNIT.exceeded("a record is too long")))
                begun = None
            if kind in {_WHOLE, _LAST} and begun is not None:
                history, begun = dict(_top(bytes(begun))).get(_HISTORY), None
                if history is not None:
                    yield Unit(history, history)


def history(value: bytes, place: Place) -> Iterable[Row]:
    """The numbers of one call of ``wandb.log``. Raises `BadRowError` when there is none, or no step."""
    del place
    step, values = _step(value)
    if step is None:
        raise BadRowError("no _step")
    numbers = {name: number for name, number in values.items() if not name.startswith("_") and name != TRAINER_STEP}
    yield scalars(step, numbers, values.get("_timestamp"))


def steps(path: Path) -> Iterator[int]:
    """The steps in the file. Raises `ConfigurationError` as `records` does."""
    for unit in records(path):
        if unit.error is None and (step := _step(unit.value)[0]) is not None:
            yield step


def _check(path: Path, head: bytes) -> None:
    if len(head) < _HEADER.size or _HEADER.unpack(head) != (_NAME, _MAGIC, _VERSION):
        raise ConfigurationError(
            f"{path}: not a run-<id>.wandb as wandb writes it today; `wandb sync` it and export its history"
        )


def _pieces(file: BinaryIO) -> Iterator[tuple[int, bytes]]:
    """Type and content of every piece; type 0 for a damaged one."""
    left = _BLOCK - _HEADER.size
    while True:
        if left < _PIECE.size:
            file.read(left)
            left = _BLOCK
        head = file.read(_PIECE.size)
        if len(head) < _PIECE.size:
            return
        check, length, kind = _PIECE.unpack(head)
        left -= _PIECE.size
        content = file.read(min(length, left))
        if len(content) < length <= left:
            return
        if length > left or zlib.crc32(content, zlib.crc32(bytes([kind]))) != check:
            file.read(left - len(content))
            yield 0, head + content
            left = _BLOCK
            continue
        left -= length
        yield kind, content


def _step(value: bytes) -> tuple[int | None, dict[str, Any]]:
    """The step of a history record, and all of its numbers."""
    step, values = None, dict[str, Any]()
    for number, content in fields(value):
        if number == _STEP:
            step = signed(dict(fields(content)).get(1, 0))
        elif number == _ITEM:
            values |= _item(content)
    stated = values.get(TRAINER_STEP)
    if isinstance(stated, int | float) and stated == int(stated):
        return int(stated), values
    return values.get("_step", step), values


def _top(content: bytes) -> Iterator[tuple[int, Any]]:
    """The fields of a record, as far as they can be read: only the history matters, and other kinds may be of any
    shape."""
    try:
        yield from fields(content)
    except (IndexError, ValueError):
        return


def _item(content: bytes) -> Mapping[str, Any]:
    """Name and number of one value; of a dictionary, of what is in it, with dots in between; else nothing."""
    key, nested, value = "", list[str](), None
    for number, part in fields(content):
        if number == _KEY:
            key = part.decode(errors="replace")
        elif number == _NESTED:
            nested.append(part.decode(errors="replace"))
        elif number == _JSON:
            value = json.loads(part)
        elif number == _INTEGER:
            value = signed(part)
        elif number == _NUMBER:
            (value,) = struct.unpack("<d", part)
    return dict(_numbers(key or ".".join(nested), value))


def _numbers(name: str, value: Any) -> Iterator[tuple[str, float]]:
    if isinstance(value, dict):
        if "_type" not in value:  # a histogram, a picture, a table
            for part, inner in value.items():
                yield from _numbers(f"{name}.{part}", inner)
    elif type(value) in {int, float}:
        yield name, value
