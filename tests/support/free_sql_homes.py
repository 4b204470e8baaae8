"""Homes for attacks on free SQL: what lies in them, byte by byte, and what must never be read."""

from __future__ import annotations

import hashlib
from pathlib import Path

SECRET = "never-to-be-read-4711"
# The service's own account of itself is written every few seconds, whoever asks what.
_OWN = ("logprobe.duckdb", "logprobe.duckdb.wal", "service.lock", "service.json")


def contents(folder: Path, *, without_service: bool = False) -> dict[str, str]:
    """Every file and folder below `folder` with a digest of what is in it."""
    found = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        # What is ingested stays in the spool until a checkpoint, which comes when the service likes.
        own = name.startswith(_OWN) or name.endswith(".ingested")
        if not (without_service and own):
            found[name] = digest(path)
    return found


def digest(path: Path) -> str:
    """Of a file's bytes and mode, a link's target, a folder's mode."""
    status = path.lstat()
    if path.is_symlink():
        return f"-> {path.readlink()}"
    content = path.read_bytes() if path.is_file() else b""
    return f"{status.st_mode:o} {hashlib.sha256(content).hexdigest()}"


def plant(home: Path) -> Path:
    """Secrets in the home and beside it, and links to them where free SQL may read; the file beside the home."""
    outside = home.parent / "outside.csv"
    for path in (home / "token", home / "channels.yaml", outside):
        path.write_text(f"word\n{SECRET}\n", encoding="utf-8")
    (home / "raw" / "link").symlink_to(outside)
    (home / "raw" / "up").symlink_to(home)
    return outside
