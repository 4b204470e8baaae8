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


def read_secret(label: str, *, variable: str, file: Path | None, environment: Mapping[str, str]) -> Secret:
    """The secret in `file` if one is named, else in the environment's `variable`, else in the file that
    ``<variable>_FILE`` names.

    Raises `ConfigurationError` when there is none, or when others than the owner and the group may read the file. The
    message names the place and never the content.
    """
    if file is None and variable not in environment and f"{variable}_FILE" in environment:
        file = Path(environment[f"{variable}_FILE"])
    if file is not None:
        return Secret(_checked(_read_private(file), f"{label}: the file {file}"))
    if variable not in environment:
        raise ConfigurationError(f"{label}: set the environment variable {variable}, or name a file that holds it")
    return Secret(_checked(environment[variable], f"{label}: the environment variable {variable}"))


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
