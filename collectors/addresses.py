"""Addresses of recorded runs: a folder, or a bucket with a local folder in front of it.

``LOGPROBE_HOME`` is a path or an address, such as ``s3://bucket/team``. For an address, collectors write into a
local folder of the user, named after the address:

    /var/tmp/logprobe-<user>/s3%3A%2F%2Fbucket%2Fteam       ($XDG_STATE_HOME instead of /var/tmp where that is set)

A shipper process sends finished segments from there to the bucket (`logprobe.collectors.shipping`).
"""

from __future__ import annotations

import importlib.util
import os
import re
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Final
from urllib.parse import quote, unquote

from logprobe.collectors.errors import ConfigurationError

SCHEMES: Final = ("s3://", "gs://", "az://")
_ADDRESS: Final = re.compile(r"(?:s3|gs|az)://[^/?#\s]+(?:/[^/?#]+)*/?")
_OTHER: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_NAME_BYTES: Final = 255  # of a folder name on common file systems
_LASTING: Final = "/var/tmp"  # noqa: S108 - survives a reboot; the folder in it is this user's alone
_STATE: Final = "XDG_STATE_HOME"
_DATA: Final = "XDG_DATA_HOME"
_OWN_DATA: Final = ".local/share"


def is_address(home: object) -> bool:
    """Return whether `home` names a bucket instead of a folder.

    >>> is_address("s3://bucket/team"), is_address("/data/logprobe")
    (True, False)
    """
    return isinstance(home, str) and home.startswith(SCHEMES)


def default_home(environment: Mapping[str, str] = os.environ) -> str:
    """Return the data directory of this user: ``$LOGPROBE_HOME``, else ``logprobe`` in the data folder of XDG.

    Raises `ConfigurationError` if the user has no home folder.

    >>> default_home({"XDG_DATA_HOME": "/data"}), default_home({"LOGPROBE_HOME": "/runs"})
    ('/data/logprobe', '/runs')
    """
    if named := environment.get("LOGPROBE_HOME"):
        return named
    try:
        folder = Path(environment.get(_DATA) or Path(environment.get("HOME") or Path.home()) / _OWN_DATA)
    except RuntimeError:  # neither HOME nor an entry of this user
        folder = Path()
    if not folder.is_absolute():
        raise ConfigurationError("no data directory: this user has no home folder; set LOGPROBE_HOME")
    return str(folder / "logprobe")


def checked(address: str) -> str:
    """Return the canonical spelling of a bucket's address.

    Raises:
        ConfigurationError: the address is invalid, or the object store package is missing.

    >>> checked("s3://bucket/team/")
    's3://bucket/team'
    """
    if not _ADDRESS.fullmatch(address) or len(os.fsencode(quote(address, safe=""))) > _NAME_BYTES:
        raise ConfigurationError(f"{address!r} is not the address of a bucket; use s3://BUCKET/FOLDER, gs:// or az://")
    if importlib.util.find_spec("obstore") is None:
        raise ConfigurationError(f"{address}: buckets need the package 'obstore'; run: pip install 'logprobe[bucket]'")
    return address.rstrip("/")


def folder_of(home: str | os.PathLike[str], environment: Mapping[str, str] = os.environ) -> Path:
    """Return the folder that processes of this machine record to.

    For an address, create the local folder immediately, accessible to this user alone, so that a wrong address fails
    early.

    Raises:
        ConfigurationError: the address is wrong, or the local folder cannot be created or belongs to another user.
    """
    named = os.fsdecode(home)
    if _OTHER.match(named) and not is_address(named):
        raise ConfigurationError(f"{named!r} is neither a folder nor a bucket; use s3://BUCKET/FOLDER, gs:// or az://")
    if not is_address(named):
        return _absolute(named)
    address = checked(named)
    above = _above(environment)
    try:
        above.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = above.lstat()
        if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o022:
            raise ConfigurationError(
                f"{above} is a link, belongs to another user, or others can change it; remove it, or set {_STATE} to a "
                "folder of yours"
            )
        folder = above / quote(address, safe="")
        folder.mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        raise ConfigurationError(
            f"{error.filename or above}: records for {address} cannot wait here ({error.strerror or error}); set "
            f"{_STATE} to a folder on a disk of this machine"
        ) from error
    return folder


def _absolute(path: str) -> Path:
    """Raise `ConfigurationError` if `path` depends on a missing folder."""
    try:
        return Path(path).expanduser().absolute()
    except (RuntimeError, OSError) as error:  # of a user without a home folder; the working directory was removed
        raise ConfigurationError(f"{path}: the path cannot be resolved ({error}); use an absolute one") from error


def address_of(folder: Path, environment: Mapping[str, str] = os.environ) -> str | None:
    """Return the address whose records wait in `folder`, or None if `folder` is itself a data directory."""
    address = unquote(folder.name)
    return address if is_address(address) and folder.parent == _above(environment) else None


def _above(environment: Mapping[str, str]) -> Path:
    return _absolute(environment.get(_STATE) or _LASTING) / f"logprobe-{os.geteuid()}"
