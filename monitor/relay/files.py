"""Where a home keeps what its relays need, below ``<home>/relay/``, and which of it is secret.

``ca.pem`` is the authority that nodes trust, ``ca.key`` signs and stays here; ``server.pem`` and ``server.key`` are the
receiver's; ``tokens.json`` has the writers; in ``incoming/`` segments arrive, outside of the
spool until they are verified.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from logprobe.collectors.errors import ConfigurationError
from logprobe.collectors.files import make_durable, open_no_follow, replace_file
from logprobe.monitor.home import Home

FOLDER: Final = "relay"
MOST_BYTES: Final = 1 << 20  # that are read of a file


class RelayFiles:
    """Paths below one home."""

    def __init__(self, folder: Path) -> None:
        """See `of`."""
        self.folder = folder
        self.authority = folder / "ca.pem"  # certificate that nodes trust
        self.authority_key = folder / "ca.key"  # signs certificates of this home
        self.certificate = folder / "server.pem"  # of the receiver, one's own or made by `logprobe certificate`
        self.key = folder / "server.key"  # of `certificate`
        self.tokens = folder / "tokens.json"  # see `logprobe.monitor.relay.tokens`
        self.incoming = folder / "incoming"  # on the file system of the spool: a verified segment is renamed into it

    @classmethod
    def of(cls, home: Home) -> RelayFiles:
        """Creates nothing."""
        return cls(home.path / FOLDER)

    def create(self) -> RelayFiles:
        """Makes the folders, for the home's user alone. Raises `ConfigurationError`."""
        try:
            make_durable(self.folder)
            self.folder.chmod(0o700)
            self.incoming.mkdir(mode=0o700, exist_ok=True)
        except OSError as error:
            raise ConfigurationError(f"{self.folder}: cannot be made ({error})") from error
        return self


def write(path: Path, content: bytes, *, secret: bool) -> None:
    """Replaces a file, durably; with `secret` only its user may read it. Raises `OSError`."""
    replace_file(path, content, mode=0o600 if secret else 0o644)


def read_secret(path: Path) -> bytes:
    """A file that only its user may read. Raises `ConfigurationError` when it is another one, or cannot be read."""
    try:
        with open_no_follow(path) as file:
            if os.fstat(file.fileno()).st_mode & 0o077:
                raise ConfigurationError(f"{path} holds a secret, and others may read it; run: chmod 600 {path}")
            return file.read(MOST_BYTES)
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be read ({error.strerror})") from error
