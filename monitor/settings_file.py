"""A settings file of a home that is one pydantic document; its errors name the file, or the first field, that is wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ValidationError

from logprobe.collectors.errors import ConfigurationError
from logprobe.monitor import limits, yaml_text

Document = TypeVar("Document", bound=BaseModel)


def read(path: Path, kind: type[Document], docs: str) -> Document:
    """The document in a file; one without values where there is no file. `docs`: where its settings are listed.

    Raises `ConfigurationError` that says what is wrong with the file.
    """
    text = limits.settings_text(path)
    if text is None:
        return kind()
    try:
        values = yaml_text.plain(text, str(path))
    except yaml.YAMLError as error:
        raise ConfigurationError(f"{path}: cannot be read ({' '.join(str(error).split())})") from error
    return checked(str(path), values or {}, kind, docs)


def checked(where: str, values: Any, kind: type[Document], docs: str) -> Document:
    """The document that plain data declares. Raises `ConfigurationError` that names the first field that is wrong."""
    try:
        return kind.model_validate(values)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"])
        raise ConfigurationError(f"{where}: {field or 'the file'}: {first['msg']} ({docs})") from error
