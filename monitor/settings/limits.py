"""Limits on the cost of reading foreign files. A file cannot change its limits.

The user who reads the file can raise a limit in the environment by the name in the error, as in
``LOGPROBE_LIMITS="import_unit_mib=128"``. Commas separate several limits. docs/cluster.md lists all limits.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final

from logprobe.collectors.environment import pairs
from logprobe.collectors.errors import ConfigurationError

_UNITS: Final = {"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "": 1}
_BLOCK: Final = 1 << 20
VARIABLE: Final = "LOGPROBE_LIMITS"


@dataclass(frozen=True, slots=True)
class Limit:
    """One limit. `words`: the limited quantity. `default`: value in `unit`."""

    name: str
    words: str
    default: int
    unit: str

    @property
    def value(self) -> int:
        """Value in bytes, or as a count. Raises `ConfigurationError` unless the environment holds a positive
        integer."""
        text = _raised().get(self.name, "")
        if text and not (text.isascii() and text.isdecimal() and int(text) > 0):
            raise ConfigurationError(f"{VARIABLE}: {self.name}={text!r} is invalid; write a whole number above 0")
        return (int(text) if text else self.default) * _UNITS[self.unit]

    def __str__(self) -> str:
        size = self.value // _UNITS[self.unit]
        return f"{size:,} {self.unit}".rstrip()

    def exceeded(self, what: str) -> ConfigurationError:
        """Return the error that names `what`, the exceeded limit and the way to raise it."""
        return ConfigurationError(
            f"{what}; the limit for {self.words} is {self}. If you trust the file, raise it: {VARIABLE}={self.name}=…"
        )


SETTINGS: Final = Limit("settings_kib", "a settings file", 256, "KiB")
SETTINGS_VALUES: Final = Limit("settings_values", "values in a settings file, aliases expanded", 20_000, "")
TOKENIZER: Final = Limit("tokenizer_mib", "a tokenizer.json", 256, "MiB")
IMPORT_UNIT: Final = Limit("import_unit_mib", "one line, row or record of an imported file", 64, "MiB")
IMPORT_MEMORY: Final = Limit("import_memory_gib", "the memory that reading one file may take", 4, "GiB")
IMPORT_EXPANSION: Final = Limit("import_expansion", "bytes read per byte of an imported file", 200, "")
IMPORT_FREE: Final = Limit("import_free_mib", "the expansion allowed for a file of any size", 256, "MiB")
SHIPPED_SEGMENT: Final = Limit("shipped_segment_mib", "one segment from a bucket", 256, "MiB")
SHIPPED_SPOOL: Final = Limit("shipped_spool_gib", "what waits to be ingested, before more is pulled", 20, "GiB")
ALL: Final = (
    SETTINGS,
    SETTINGS_VALUES,
    TOKENIZER,
    IMPORT_UNIT,
    IMPORT_MEMORY,
    IMPORT_EXPANSION,
    IMPORT_FREE,
    SHIPPED_SEGMENT,
    SHIPPED_SPOOL,
)


def _raised() -> dict[str, str]:
    """Return the overrides of limits in the environment by name."""
    raised = pairs(os.environ.get(VARIABLE, ""))
    if unknown := raised.keys() - {limit.name for limit in ALL}:
        names = ", ".join(limit.name for limit in ALL)
        raise ConfigurationError(f"{VARIABLE}: no limit is called {min(unknown)!r}; choose one of: {names}")
    return raised


def read_text(file: Path, limit: Limit, *, not_for: int = 0) -> str:
    """Return the text of a regular file. Raises the errors of `read_bytes`, and `UnicodeDecodeError`."""
    return read_bytes(file, limit, not_for=not_for).decode("utf-8")


def settings_text(file: Path) -> str | None:
    """Return the text of the settings file, or None without one. Raises `ConfigurationError` if it is invalid or
    unreadable."""
    try:
        return read_text(file, SETTINGS)
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{file}: cannot be read ({error}); check its path and permissions") from error


def read_bytes(file: Path, limit: Limit, *, not_for: int = 0) -> bytes:
    """Return the content of a regular file.

    Raises:
        ConfigurationError: the file is not regular, is larger than `limit`, or its mode has one of the bits `not_for`.
        OSError: the file is unreadable.
    """
    # Opening a FIFO would wait for a writer; a device may have no end.
    with os.fdopen(os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC), "rb") as opened:
        mode = os.fstat(opened.fileno()).st_mode
        if not stat.S_ISREG(mode):
            raise ConfigurationError(f"{file} is not a regular file; copy its content to one")
        if mode & not_for:
            raise ConfigurationError(f"{file} holds a secret, and others can read or change it; run: chmod 600 {file}")
        content = opened.read(limit.value + 1)
    if len(content) > limit.value:
        raise limit.exceeded(f"{file} is larger than {limit}")
    return content


def lines(file: BinaryIO) -> Iterator[tuple[bytes, str | None]]:
    """Yield the lines of a file with their ends. For a line over the limit, yield its SHA-256 and the fault."""
    most = IMPORT_UNIT.value
    while line := file.readline(most):
        if len(line) < most or line.endswith(b"\n"):
            yield line, None
        else:
            yield _too_long(file, line)


def _too_long(file: BinaryIO, line: bytes) -> tuple[bytes, str]:
    digest, size = hashlib.sha256(line), len(line)
    while not line.endswith(b"\n") and (line := file.readline(_BLOCK)):
        digest.update(line)
        size += len(line)
    end = b"\n" if line.endswith(b"\n") else b""
    return digest.digest() + end, str(IMPORT_UNIT.exceeded(f"a line of {size:,} bytes"))
