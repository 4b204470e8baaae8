"""Puts a report where the user asked for it, whole or not at all."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

from logprobe.collectors.errors import ConfigurationError


def write_report(path: Path, document: str) -> None:
    """Writes `document` and says where, on stderr. Raises `ConfigurationError` when the place is not writable."""
    try:
        with tempfile.NamedTemporaryFile("w", encoding="utf-8", dir=path.parent, suffix=".tmp", delete=False) as file:
            file.write(document)
        mask = os.umask(0)
        os.umask(mask)
        Path(file.name).chmod(0o666 & ~mask)  # as any file the user makes; temporary ones are private
        Path(file.name).replace(path)
    except OSError as error:
        raise ConfigurationError(
            f"cannot write the report {path}: {error.strerror or error}; choose another --html"
        ) from error
    print(f"wrote {path} ({len(document.encode()) / 1024:.0f} KiB)", file=sys.stderr)
