"""Secrets of channels: read from the environment or from a private file, and kept out of everything that people
read."""

from __future__ import annotations

import stat
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final, NoReturn
from urllib.parse import quote

from logprobe.collectors.errors import ConfigurationError
from logprobe.monitor import limits

_NOT_PRIVATE: Final = stat.S_IRWXO | stat.S_IWGRP  # a group may read: that is how Kubernetes hands secrets to a pod
_HIDDEN: Final = "[secret]"


class Secret:
    """A value that prints as nothing. `reveal` is called only where it leaves for its channel."""

    __slots__ = ("_value",)

    def __init__(self, value: str) -> None:
        self._value = value

    def reveal(self) -> str:
        """The value itself."""
        return self._value

    def __repr__(self) -> str:
        return "Secret()"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a secret is not pickled")


def redacted(text: str, secrets: Iterable[Secret]) -> str:
    """`text` without the secrets, as such or quoted as in an address."""
    for secret in secrets:
        for form in {secret.reveal(), quote(secret.reveal(), safe=""), quote(secret.reveal())}:
            text = text.replace(form, _HIDDEN)
    return text


def read_secret(label: str, place: str, environment: Mapping[str, str]) -> Secret:
    """Return the secret at a place: ``$VARIABLE`` of `environment`, or the path of a private file.

    Raises:
        ConfigurationError: there is none, or other users than the owner and the group may read the file. The message
            names the place and never the content; a text that is no place may be the secret, and is not quoted.
    """
    if place.startswith("$"):
        if (variable := place[1:]) not in environment:
            raise ConfigurationError(f"{label}: the environment variable {variable} is not set")
        return Secret(_checked(environment[variable], f"{label}: the environment variable {variable}"))
    if not place.startswith(("/", "~/", "./")):
        raise ConfigurationError(
            f"{label} is neither $VARIABLE nor the path of a file (/…, ~/…, ./…); write where the secret is, never the "
            "secret itself"
        )
    return Secret(_checked(_read_private(Path(place)), f"{label}: the file {place}"))


def _read_private(file: Path) -> str:
    try:
        return limits.read_text(file.expanduser(), limits.SETTINGS, not_for=_NOT_PRIVATE)
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "is not UTF-8"
        raise ConfigurationError(f"{file}: cannot read the secret ({reason})") from None


def _checked(value: str, where: str) -> str:
    secret = value.strip()
    if not secret or not secret.isprintable() or " " in secret:
        raise ConfigurationError(f"{where} is empty, or is not a single line without spaces")
    return secret
