"""Removing an object of a store that speaks S3, through Amazon's own library.

Arrow, which does everything else, leaves an empty object with the name of the folder behind, and a folder here is named
after its run.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Final

from logprobe.collectors.errors import MissingExtraError

_SECONDS: Final = {"connect_timeout": 5, "read_timeout": 30}


class RefusedError(Exception):
    """What the library says went wrong."""


def remove(key: str, endpoint: str | None, region: str | None) -> None:
    """Removes ``bucket/name``, if it is there. Raises `RefusedError`; `MissingExtraError` without the library."""
    try:
        from botocore.exceptions import BotoCoreError, ClientError  # noqa: PLC0415 - an extra
    except ImportError as error:
        raise MissingExtraError("objects in S3 need another package: pip install 'logprobe[s3]'") from error
    bucket, _, name = key.partition("/")
    try:
        _client(endpoint, region).delete_object(Bucket=bucket, Key=name)
    except (BotoCoreError, ClientError) as error:
        raise RefusedError(str(error)) from error


@lru_cache(maxsize=4)
def _client(endpoint: str | None, region: str | None) -> Any:
    from botocore.config import Config  # noqa: PLC0415
    from botocore.session import Session  # noqa: PLC0415

    style = {} if endpoint is None else {"s3": {"addressing_style": "path"}}
    config = Config(**_SECONDS, **style, retries={"total_max_attempts": 3})
    return Session().create_client("s3", endpoint_url=endpoint, region_name=region, config=config)
