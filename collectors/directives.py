"""Directives from the controller to a trainer about its objective: document, signature and file.

    <home>/directives/<quoted run>.json     the directives of one run, replaced atomically
    <home>/directives/<quoted run>.stop     kill switch, which disables corrections while it exists, without a service
    <home>/directive.key                    key that signs directives, if it exists, and requires a signature

A document is a list of entries, each valid from a step on. Every rank that reads the file before a step finds the
same configuration for it, also after a restart from a checkpoint.
"""

from __future__ import annotations

import errno
import hashlib
import hmac
import json
import os
import stat
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, Self

from logprobe.collectors.correction import CorrectionConfig
from logprobe.collectors.errors import ConfigurationError, DirectiveError
from logprobe.collectors.files import READABLE, open_no_follow, replace_file
from logprobe.collectors.recorder.documents import canonical_json
from logprobe.collectors.spool.segments import run_dir

FORMAT: Final = 1
KEY_VARIABLE: Final = "LOGPROBE_DIRECTIVE_KEY"
_SHORTEST_KEY: Final = 16  # bytes
_MOST_BYTES: Final = 1 << 20
_OTHERS_WRITE: Final = stat.S_IWGRP | stat.S_IWOTH
_KEY_NOT_FOR: Final = stat.S_IRWXO | stat.S_IWGRP  # a group may read: the trainers'
FOLDER: Final = "directives"  # in a home
STOP: Final = ".stop"
_MOST_ENTRIES: Final = 256  # a run that was switched more often keeps the newest
_LONGEST_REASON: Final = 500  # characters: the file stays smaller than what is read of it


@dataclass(frozen=True, slots=True)
class Entry:
    """Configuration that applies from `from_step` until the next entry, or None for no correction."""

    version: int
    from_step: int
    config: CorrectionConfig | None
    reason: str

    def document(self) -> Mapping[str, Any]:
        """Return the entry as JSON-like data."""
        config = None if self.config is None else self.config.to_dict()
        return {"version": self.version, "from_step": self.from_step, "config": config, "reason": self.reason}

    @classmethod
    def parse(cls, document: Mapping[str, Any]) -> Self:
        """Return the entry of a document.

        Raise `DirectiveError`, `ConfigurationError` (the configuration), `KeyError`, `TypeError` or `ValueError`.
        """
        config = document["config"]
        return cls(
            version=_whole(document["version"]),
            from_step=_whole(document["from_step"]),
            config=None if config is None else CorrectionConfig.from_dict(config),
            reason=str(document["reason"]),
        )


@dataclass(frozen=True, slots=True)
class Directives:
    """All directives of one run, oldest first. `stopped`: true if the kill switch is set."""

    run: str
    entries: tuple[Entry, ...] = ()
    stopped: bool = False

    @property
    def version(self) -> int:
        """Version of the newest entry, or 0."""
        return self.entries[-1].version if self.entries else 0

    def at(self, step: int) -> Entry | None:
        """Return the entry that applies in `step`, or None if none does or the kill switch is set.

        >>> Directives("r").issue(10, None, "off").at(9) is None
        True
        """
        if self.stopped:
            return None
        index = bisect_right(self.entries, step, key=lambda entry: entry.from_step)
        return self.entries[index - 1] if index else None

    def issue(self, from_step: int, config: CorrectionConfig | None, reason: str) -> Self:
        """Return the directives with an additional entry. It supersedes entries that begin at `from_step` or later."""
        kept = tuple(entry for entry in self.entries if entry.from_step < from_step)
        told = reason if len(reason) <= _LONGEST_REASON else reason[:_LONGEST_REASON] + "…"
        entry = Entry(self.version + 1, from_step, config, told)
        return replace(self, entries=(*kept, entry)[-_MOST_ENTRIES:])

    def document(self) -> Mapping[str, Any]:
        """Return the directives as JSON-like data without the signature."""
        return {
            "format": FORMAT,
            "run": self.run,
            "version": self.version,
            "stopped": self.stopped,
            "entries": [entry.document() for entry in self.entries],
        }


def signed(directives: Directives, key: bytes | None) -> Mapping[str, Any]:
    """Return the document, signed if there is a key: HMAC-SHA-256 over the canonical JSON of all other fields."""
    document = directives.document()
    return document if key is None else {**document, "signature": _sign(document, key)}


def encode(directives: Directives, key: bytes | None) -> bytes:
    """Return the file's content."""
    return _bytes(canonical_json(signed(directives, key)))


def decode(data: bytes, run: str, key: bytes | None) -> Directives:
    """Return the directives that `encode` encoded.

    Raises:
        DirectiveError: the document belongs to another run, has a newer format, or lacks a valid signature despite a
            key.
    """
    try:
        document = json.loads(data)
        signature = document.pop("signature", None)
    except (ValueError, AttributeError, TypeError, RecursionError) as error:
        raise DirectiveError(f"not a directive: {error}; issue it again") from error
    if key is not None and not _is_signed(document, signature, key):
        raise DirectiveError(
            "the directive's signature is missing or wrong; give trainer and service the same directive.key"
        )
    if document.get("format") != FORMAT:
        raise DirectiveError(
            f"directives have format {document.get('format')!r}, and this logprobe supports {FORMAT}; upgrade logprobe"
        )
    if document.get("run") != run:
        raise DirectiveError(f"directives of run {document.get('run')!r}, not of {run!r}; issue them again")
    try:
        entries = tuple(Entry.parse(entry) for entry in document["entries"])
        stopped = document["stopped"]
    except (LookupError, TypeError, ValueError) as error:  # ConfigurationError is a ValueError
        raise DirectiveError(
            f"invalid directive ({error}); install the same version for service and trainer"
        ) from error
    if any(later.from_step <= earlier.from_step for earlier, later in pairwise(entries)):
        raise DirectiveError("directives out of order; issue them again")
    return Directives(run, entries, stopped=stopped is not False)


class DirectiveFile:
    """File with the directives of one run in its data directory. The service writes it, and any process may read it."""

    def __init__(self, home: Path, run: str) -> None:
        """Derive the paths without file access."""
        self._run = run
        self._folder = home / FOLDER
        name = run_dir(home, run).name
        self.path = self._folder / f"{name}.json"
        self.stop_path = self._folder / f"{name}{STOP}"
        self._decoded: tuple[bytes, bytes | None, Directives] | None = None  # content, key, and what they mean

    def read(self, key: bytes | None) -> Directives:
        """Return the directives on disk, or none without a file. Raise `DirectiveError` or `OSError`.

        The kill switch is checked first, so it works with a corrupt file.
        """
        return Directives(self._run, stopped=True) if self.stop_path.exists() else self.issued(key)

    def issued(self, key: bytes | None) -> Directives:
        """Return the directives regardless of the kill switch. Raise `DirectiveError` or `OSError`."""
        data = self._trusted_content() if key is None else self.content()
        if data is None:
            return Directives(self._run)
        known = self._decoded
        if known is None or known[:2] != (data, key):  # trainers look often, and a long one takes milliseconds
            known = self._decoded = data, key, decode(data, self._run, key)
        return known[2]

    def content(self) -> bytes | None:
        """Return the content of the file, or None if it does not exist. Raise `OSError`."""
        try:
            return self._bytes_and_owner()[0]
        except FileNotFoundError:
            return None

    def _trusted_content(self) -> bytes | None:
        """Return the content if only its owner can have written it.

        Without a signature, trust rests on the owner of the file.
        """
        try:
            data, status = self._bytes_and_owner()
        except FileNotFoundError:
            return None
        owners = {0, os.geteuid(), self._folder.parent.stat().st_uid}
        if status.st_uid not in owners or status.st_mode & _OTHERS_WRITE:
            raise DirectiveError(
                f"{self.path} belongs to user {status.st_uid} or can be changed by others; unsigned directives are "
                "accepted only from the owner of the "
                "data directory; let only the service write there, or sign them (docs/correction.md)"
            )
        return data

    def _bytes_and_owner(self) -> tuple[bytes, os.stat_result]:
        """Read the file with its status.

        Never follow a link, wait for a pipe, or read more than the size limit of a document.
        """
        with open_no_follow(self.path) as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise OSError(errno.EINVAL, "not a regular file; remove it", str(self.path))
            return file.read(_MOST_BYTES), status

    def write(self, directives: Directives, key: bytes | None) -> None:
        """Replace the file atomically, so that a crash leaves the old or new content. Raise `OSError`."""
        replace_file(self.path, encode(directives, key), mode=READABLE)

    def stop(self, words: str) -> None:
        """Set the kill switch. `words` state its author and reason. Raise `OSError`."""
        self._folder.mkdir(parents=True, exist_ok=True)
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        with os.fdopen(os.open(self.stop_path, flags, 0o644), "w", encoding="utf-8") as file:
            file.write(f"{words}\n")

    def release(self) -> bool:
        """Release the kill switch and return whether it was set. Raise `OSError`."""
        was_set = self.stop_path.exists()
        self.stop_path.unlink(missing_ok=True)
        return was_set


def directive_key(home: Path | None, environment: Mapping[str, str] = os.environ) -> bytes | None:
    """Return the key that directives are signed with: ``LOGPROBE_DIRECTIVE_KEY``, else ``<home>/directive.key``, or
    None if there is none.

    Raises:
        ConfigurationError: the key is too short or cannot be read.
    """
    given = environment.get(KEY_VARIABLE)
    source, key = KEY_VARIABLE, given.encode() if given else None
    if key is None and home is not None:
        path = home / "directive.key"
        source = str(path)
        try:
            with path.open("rb") as file:
                mode = os.fstat(file.fileno()).st_mode
                key = file.read(_MOST_BYTES).strip()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise ConfigurationError(f"{path} cannot be read ({error}); make it readable for this user") from error
        if stat.S_ISREG(mode) and mode & _KEY_NOT_FOR:
            raise ConfigurationError(f"{path}: anyone who can read it can sign; run: chmod 640 {path}")
    if key is not None and len(key) < _SHORTEST_KEY:
        raise ConfigurationError(f"{source} has less than {_SHORTEST_KEY} bytes; create a key: openssl rand -hex 32")
    return key


def _sign(document: Mapping[str, Any], key: bytes) -> str:
    return hmac.new(key, _bytes(canonical_json(document)), hashlib.sha256).hexdigest()


def _is_signed(document: Mapping[str, Any], signature: object, key: bytes) -> bool:
    return isinstance(signature, str) and hmac.compare_digest(_bytes(signature), _bytes(_sign(document, key)))


def _bytes(text: str) -> bytes:
    """Encode as UTF-8. Halves of surrogate pairs, which JSON allows, do not raise."""
    return text.encode("utf-8", "surrogatepass")


def _whole(value: object) -> int:
    if type(value) is not int:
        raise DirectiveError(f"directive: {value!r} is not a whole number; issue it again")
    return value
