"""The section ``storage`` of a home's settings: where raw tokens go when they are too many for its disk.

storage:
  raw: s3://bucket/prefix            # or gs://, abfs://container@account.dfs.core.windows.net/, file:///mnt/share
  endpoint: https://minio.example.org:9000   # of a store that speaks the same; without it, Amazon's, Google's, Azure's
  region: eu-central-1
  after: 3600                        # seconds that a file stays on the disk

Credentials are the environment's (variables, profile, instance role): the settings have no place for them.
"""

from __future__ import annotations

from typing import Annotated, Final
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, TypeAdapter

from logprobe.monitor import settings_file
from logprobe.monitor.home import Home
from logprobe.monitor.store.raw_places import SCHEMES


def _place(url: str) -> str:
    parts = urlsplit(url)
    if parts.scheme not in SCHEMES:
        raise ValueError(f"{url!r} begins with none of {', '.join(f'{scheme}://' for scheme in SCHEMES)}")
    if parts.password is not None or parts.query or parts.fragment:
        raise ValueError("credentials and options have no place in the address; see the environment's own ways")
    if not (parts.netloc if parts.scheme != "file" else parts.path.strip("/")):
        raise ValueError(f"{url!r} names no bucket" if parts.scheme != "file" else f"{url!r} names no folder")
    if ".." in parts.path.split("/"):
        raise ValueError("'..' has no place in the address")
    return url.rstrip("/")


def _endpoint(url: str) -> str:
    parts = urlsplit(url)
    if parts.scheme not in {"http", "https"} or not parts.hostname or parts.password is not None:
        raise ValueError(f"{url!r} is not an address like https://host:port")
    return url.rstrip("/")


class StorageSettings(settings_file.Settings):
    """Where raw tokens go. Without `raw` they stay on the disk."""

    raw: Annotated[str, AfterValidator(_place)] | None = None
    endpoint: Annotated[str, AfterValidator(_endpoint)] | None = None
    region: str | None = None
    after: float = Field(default=3600.0, ge=0)


_KIND: Final = TypeAdapter(StorageSettings)


def load(home: Home) -> StorageSettings:
    """The settings of a home. Raises `ConfigurationError` that names file and line."""
    return settings_file.read(home.path, "storage", _KIND, StorageSettings())
