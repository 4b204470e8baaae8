"""Sign-in with OpenID Connect, configured in ``secrets.toml`` of the data directory.

Without the file or its section, no sign-in is needed.

[auth]                  keys of Streamlit's `st.login`: redirect_uri, cookie_secret, one or several [auth.NAME]
[access]                e-mail addresses, or "*@example.org" for all of a domain
read = ["*@example.org"]
act = ["ada@example.org"]       # default: none
"""

from __future__ import annotations

import stat
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from logprobe.collectors.errors import ConfigurationError
from logprobe.monitor.settings import limits

FILE: Final = "secrets.toml"
_CALLBACK: Final = "/oauth2callback"
_NEEDED: Final = ("client_id", "client_secret", "server_metadata_url")
_SHORTEST_SECRET: Final = 32


@dataclass(frozen=True, slots=True)
class SignIn:
    """Sign-in of a data directory. `providers`: settings by name, None for the unnamed one. `readers`, `actors`: users
    who may look and act."""

    providers: tuple[str | None, ...]
    readers: tuple[str, ...]
    actors: tuple[str, ...]
    redirect_uri: str

    def may_read(self, email: str) -> bool:
        """Return true if this user may view the dashboard. The right to act includes the right to view."""
        return listed(email, self.readers) or listed(email, self.actors)

    def may_act(self, email: str) -> bool:
        """Return true if this user may act."""
        return listed(email, self.actors)


def listed(email: str, patterns: Sequence[str]) -> bool:
    """Return true if an address is among `patterns`, which are addresses or ``*@domain``.

    >>> listed("Ada@Example.org", ["*@example.org"]), listed("ada@sub.example.org", ["*@example.org"])
    (True, False)
    """
    name, at, domain = email.lower().rpartition("@")
    return bool(name and at) and any(pattern.lower() in {email.lower(), f"*@{domain}"} for pattern in patterns)


def email_of(user: Mapping[str, Any]) -> str | None:
    """Return the e-mail address verified by the provider, or None without one."""
    email = user.get("email")
    verified = str(user.get("email_verified", True)).lower() == "true"
    return email if isinstance(email, str) and verified else None


def load(home: Path) -> SignIn | None:
    """Read the sign-in from its file, or return None if the file requests none.

    Raises `ConfigurationError` if the file cannot be read, other users may read it, or it would admit no visitor or
    every visitor.
    """
    file = home / FILE
    try:
        document = tomllib.loads(limits.read_text(file, limits.SETTINGS))
        mode = stat.S_IMODE(file.stat().st_mode)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigurationError(f"{file}: cannot be read ({error}); check its permissions") from error
    if "auth" not in document:
        return None
    if mode & (stat.S_IRWXO | stat.S_IWGRP):
        raise ConfigurationError(f"{file} holds secrets, and other users can read or change it; run: chmod 600 {file}")
    return _checked(file, document)


def _checked(file: Path, document: Mapping[str, Any]) -> SignIn:
    auth = document["auth"]
    providers = _providers(file, auth)
    redirect_uri = str(auth.get("redirect_uri", ""))
    if not redirect_uri.endswith(_CALLBACK):
        raise ConfigurationError(
            f"{file}: [auth] redirect_uri does not end in {_CALLBACK}; append that to the dashboard's URL"
        )
    if len(str(auth.get("cookie_secret", ""))) < _SHORTEST_SECRET:
        raise ConfigurationError(
            f"{file}: [auth] cookie_secret is shorter than {_SHORTEST_SECRET} characters; use `openssl rand -hex 32`"
        )
    access = document.get("access", {})
    readers, actors = (_patterns(file, access, name) for name in ("read", "act"))
    if not readers and not actors:
        raise ConfigurationError(
            f'{file}: no user has access; add a section [access], e.g. read = ["*@example.org"], act = '
            '["ada@example.org"]'
        )
    return SignIn(providers, readers, actors, redirect_uri)


def _providers(file: Path, auth: Mapping[str, Any]) -> tuple[str | None, ...]:
    named = {name: section for name, section in auth.items() if isinstance(section, Mapping) and "client_id" in section}
    sections: dict[str | None, Mapping[str, Any]] = {None: auth} if "client_id" in auth else {}
    sections.update(named)
    if not sections:
        raise ConfigurationError(f"{file}: [auth] names no provider; add {', '.join(_NEEDED)}")
    for name, section in sections.items():
        if name and "_" in name:  # Streamlit's way to look a provider up cannot do with one
            raise ConfigurationError(
                f"{file}: [auth.{name}]: the name of a provider cannot contain an underscore; rename it"
            )
        missing = [key for key in _NEEDED if not section.get(key)]
        if missing:
            raise ConfigurationError(
                f"{file}: [auth{f'.{name}' if name else ''}] lacks {', '.join(missing)}; add what is missing"
            )
    return tuple(sections)


def _patterns(file: Path, access: Any, name: str) -> tuple[str, ...]:
    values = access.get(name, []) if isinstance(access, Mapping) else None
    if not isinstance(values, list) or not all(isinstance(value, str) and "@" in value for value in values):
        raise ConfigurationError(
            f'{file}: [access] {name} is not a list of e-mail addresses; write e.g. ["ada@example.org"]'
        )
    return tuple(values)
