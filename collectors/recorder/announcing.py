"""One line on stderr when a run begins to be recorded: what, where, and how to look at it.

It is written once per process group, by none but rank 0, and never to stdout, which may carry a protocol of the host.
``LOGPROBE_RECORD=quiet`` leaves it out.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Mapping
from hashlib import sha256
from typing import Final

from logprobe.collectors.addresses import default_home, folder_of, is_address
from logprobe.collectors.environment import option
from logprobe.collectors.errors import ConfigurationError
from logprobe.collectors.plain_text import complain
from logprobe.collectors.recorder.settings import Settings

_said: Final[list[int]] = []  # sockets, held while the process lives; the kernel lets go of them at its end


def announce(settings: Settings, environment: Mapping[str, str] = os.environ) -> None:
    """Say once that `settings` are recorded; what fails leaves it unsaid."""
    if settings.rank or option("quiet", environment) is not None:
        return
    with contextlib.suppress(OSError, ValueError, AttributeError):  # said by another one; stderr is closed, or None
        _claim(f"{settings.home}\0{settings.run}")
        view = "" if is_address(settings.home) else f"; view: logprobe up{_option(settings, environment)}"
        complain(f"recording run {settings.run} to {settings.home}{view}")


def _claim(what: str) -> None:
    """Take the right to say it from all other processes of this group. Raises `OSError` if one of them has it."""
    name = sha256(f"{os.getuid()}\0{os.getpgrp()}\0{what}".encode(errors="replace")).hexdigest()
    claim = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    try:
        claim.bind(f"\0logprobe-{name}")  # abstract: it leaves no file
    except OSError:
        claim.close()
        raise
    _said.append(claim.detach())  # a number: nothing closes it before the process ends


def _option(settings: Settings, environment: Mapping[str, str]) -> str:
    """Return ``--home DIR`` unless the command finds the data directory by itself."""
    with contextlib.suppress(ConfigurationError):
        if settings.home == str(folder_of(default_home(environment), environment)):
            return ""
    return f" --home {settings.home}"
