"""Who asks: the process at the other end of a connection, as the kernel has it. What someone says of themselves counts
for nothing.

A process may open as many connections as it likes; it stays one. Where the kernel does not tell (another machine,
another user's process in another namespace, no ``/proc``) it is the user, or the machine.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Final
from urllib.parse import unquote

_PROC: Final = Path("/proc")
_TABLES: Final = ("tcp", "tcp6")
_LOCAL, _UID, _INODE = 1, 7, 9  # columns of /proc/net/tcp
_CONNECTIONS: Final = 4096


def host_of(peer: str) -> str:
    """The machine of a gRPC peer.

    >>> host_of("ipv4:10.0.0.7:49330"), host_of("ipv6:%5B::1%5D:49330")
    ('10.0.0.7', '[::1]')
    """
    return unquote(peer).partition(":")[2].rpartition(":")[0]


def caller_of(peer: str) -> str:
    """One name for all connections of a process; of a machine or a user, where the process is unknown."""
    port = peer.rpartition(":")[2]
    uid_and_inode = _socket(int(port)) if port.isdigit() else None
    return f"machine {host_of(peer)}" if uid_and_inode is None else _owner(*uid_and_inode)


def _socket(port: int) -> tuple[str, str] | None:
    """User and inode of the socket of this machine that has this port; None: there is none, or no one tells."""
    wanted = f":{port:04X}"
    for table in _TABLES:
        with suppress(OSError):
            for line in (_PROC / "net" / table).read_text(encoding="ascii").splitlines()[1:]:
                columns = line.split()
                if columns[_LOCAL].endswith(wanted) and columns[_INODE] != "0":
                    return columns[_UID], columns[_INODE]
    return None


@lru_cache(maxsize=_CONNECTIONS)
def _owner(uid: str, inode: str) -> str:
    """The process that has the socket, else its user. A socket keeps its inode, and hardly ever its owner changes."""
    wanted = f"socket:[{inode}]"
    pids = (process for process in _processes(int(uid)) if wanted in _open_files(process))
    return next((f"process {process.name}" for process in pids), f"user {uid}")


def _processes(uid: int) -> Iterator[Path]:
    for process in _PROC.glob("[0-9]*"):
        with suppress(OSError):  # it has ended
            if process.stat().st_uid == uid:
                yield process


def _open_files(process: Path) -> set[str]:
    names = set()
    with suppress(OSError):  # it has ended, or is not ours to look at
        for descriptor in (process / "fd").iterdir():
            with suppress(OSError):
                names.add(str(descriptor.readlink()))
    return names
