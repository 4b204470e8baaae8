"""Access settings of a dashboard, from the options of `logprobe up`.

The dashboard's process receives them in its environment.
"""

from __future__ import annotations

import ipaddress
import json
import socket
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from enum import Enum
from typing import Final
from urllib.parse import urlsplit

from logprobe.collectors.errors import ConfigurationError

# Any of them says that a proxy stood between the browser and us, so that "from this machine" means nothing.
_FORWARDED: Final = ("forwarded", "via", "x-forwarded-for", "x-forwarded-host", "x-forwarded-proto", "x-real-ip")


class Permission(Enum):
    """Permission to act. The value of a refusal is its reason and the remedy."""

    GRANTED = ""
    READ_ONLY = "this dashboard was started with --read-only; use the command line"
    NOT_LISTED = "you have read access only: your address is not under `act` in secrets.toml of the data directory"
    LOCKED = "enter the token above first; it is in the file `token` of the data directory"


@dataclass(frozen=True, slots=True)
class Visitor:
    """A visitor of the dashboard. `may_act`: right of the signed-in user, or None without sign-in. `unlocked`: true
    after the token was entered. `direct`: true for a visitor on this machine without a proxy.
    """

    may_act: bool | None = None
    unlocked: bool = False
    direct: bool = False


def permission(access: Access, visitor: Visitor) -> Permission:
    """Return the permission of a visitor.

    The checks run in this order: read-only mode, the lists for signed-in users, this machine, the token.
    """
    if access.read_only:
        return Permission.READ_ONLY
    if visitor.may_act is not None:
        return Permission.GRANTED if visitor.may_act else Permission.NOT_LISTED
    if (access.local and visitor.direct) or visitor.unlocked:
        return Permission.GRANTED
    return Permission.LOCKED


def is_direct(address: str | None, headers: Mapping[str, str]) -> bool:
    """Return true if a request came from this machine without a proxy.

    `address`: address of the client from Streamlit, or None for this machine.
    """
    names = {name.lower() for name in headers}
    return (address is None or is_loopback(address)) and not names.intersection(_FORWARDED)


VARIABLE: Final = "LOGPROBE_DASHBOARD"


@dataclass(frozen=True, slots=True)
class Access:
    """Addresses and rights of the dashboard. `address`: address it listens on. `public_url`: URL behind a proxy.

    `also`: other data directories whose runs can be compared.
    """

    address: str = "127.0.0.1"
    public_url: str | None = None
    read_only: bool = False
    also: tuple[str, ...] = ()

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> Access:
        """Return the access settings from the variables of `environment`, or the narrowest access without them."""
        text = environment.get(VARIABLE)
        given = json.loads(text) if text else {}
        return cls(**{**given, "also": tuple(given.get("also", ()))})

    def environment(self) -> dict[str, str]:
        """Return the variables that `of` reads."""
        return {VARIABLE: json.dumps(asdict(self))}

    @property
    def local(self) -> bool:
        """True if only this machine can reach the dashboard and no proxy is configured."""
        return self.public_url is None and is_loopback(self.address)

    @property
    def base_path(self) -> str:
        """Path of the dashboard without leading and trailing slashes, or ""."""
        return urlsplit(self.public_url or "").path.strip("/")

    @property
    def origin(self) -> str | None:
        """Scheme, host and port of the public address as browsers send them, or None without one."""
        if self.public_url is None:
            return None
        parts = urlsplit(self.public_url)
        return f"{parts.scheme}://{parts.netloc}".lower()


def checked_url(text: str) -> str:
    """Return `text` without a trailing slash. Raises `ConfigurationError` if `text` is not the URL of a web page."""
    parts = urlsplit(text)
    if parts.scheme not in {"http", "https"} or not parts.hostname or parts.query or parts.fragment or parts.username:
        raise ConfigurationError(
            f"--public-url {text!r} is not a page URL; write it as browsers use it, e.g. https://host/logprobe"
        )
    return text.rstrip("/")


def is_loopback(host: str) -> bool:
    """Return true if a name or address means this machine only."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def is_address(host: str) -> bool:
    """Return true if `host` is an IP address, not a name."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def host_names(access: Access) -> frozenset[str]:
    """Return the permitted host names of the dashboard in lower case. They include the machine's names if the
    dashboard listens beyond this machine.
    """
    public = urlsplit(access.public_url or "").hostname
    own = () if is_loopback(access.address) else (socket.gethostname(), socket.getfqdn())
    names = ("localhost", "127.0.0.1", "::1", access.address, public, *own)
    return frozenset(name.lower() for name in names if name)
