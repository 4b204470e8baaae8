"""Bucket with a few operations on names, through obstore.

Credentials, endpoint and region come from the environment, as obstore reads it (``AWS_ENDPOINT_URL``,
``GOOGLE_APPLICATION_CREDENTIALS``).

    spool/RUN/WRITER/FILE       segments, from nodes
    control/RUN.json            directives for the trainers of a run
    nodes/NODE.json             state of a node
    archive/, deleted/          files of the service's data directory, see `monitor.shipped.mirror`
"""

from __future__ import annotations

import datetime as dt
import hashlib
import html
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Final

import obstore
from obstore.exceptions import BaseError, NotFoundError, NotModifiedError, PermissionDeniedError, UnauthenticatedError
from obstore.store import from_url

from logprobe.collectors.errors import ConfigurationError

SPOOL: Final = "spool/"
CONTROL: Final = "control/"
NODES: Final = "nodes/"
ARCHIVE: Final = "archive/"
DELETED: Final = "deleted/"
_MD5: Final = re.compile(r'"?([0-9a-f]{32})"?')
_RETRIES: Final = 2
_SECONDS: Final = dt.timedelta(seconds=10)
_CLIENT: Final[Any] = {"timeout": "60s", "connect_timeout": "5s", "allow_http": True}
_MISSING: Final = (NotFoundError, FileNotFoundError)
_REFUSED: Final = re.compile(r"status code: 40[13]\b|<Code>ExpiredToken<")  # S3 answers 400 to an expired one
_SKEWED: Final = re.compile(r"RequestTimeTooSkewed|difference between the request time", re.IGNORECASE)
_SECRET: Final = re.compile(r"\?\S*")  # of an address: some carry a signature
_REQUEST: Final = re.compile(r"(?: for path \S+?)?: Error performing .*? in [\d.]+\w*s\b(?:, after [^-]*)? *- ")
_MESSAGE: Final = re.compile(r"<Message>(.*?)</Message>", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Entry:
    """Object of a listing. `modified`: time by the bucket's clock."""

    name: str
    size: int
    modified: dt.datetime
    tag: str | None


class Bucket:
    """Objects below one address. The class is safe from several threads, and every method raises `OSError` in one line.

    Refused credentials are a `PermissionError`.
    """

    def __init__(self, address: str) -> None:
        """Set up the bucket without a connection. Raise `ConfigurationError` if obstore lacks a variable."""
        self.address = address
        retry: Any = {"max_retries": _RETRIES, "retry_timeout": _SECONDS}
        try:
            self._store = from_url(address, client_options=_CLIENT, retry_config=retry)
        except (BaseError, ValueError) as error:
            raise ConfigurationError(f"{address}: {_line(error)}; set the environment variables of obstore") from error

    def put(self, name: str, content: bytes) -> None:
        """Store an object and return once the bucket has exactly these bytes.

        The MD5 in the answer proves this. Answers without it (of an encrypted bucket, of Google, of Azure) are
        verified by reading the object back.
        """
        with self._explained(name):
            answer = obstore.put(self._store, name, content, use_multipart=False)
        stated = _MD5.fullmatch(answer["e_tag"] or "")
        if stated is not None and stated[1] == hashlib.md5(content, usedforsecurity=False).hexdigest():
            return
        if self.get(name) != content:
            raise OSError(f"{self.address}/{name}: the bucket has other bytes than were sent; send them again")

    def entries(self, prefix: str) -> Iterator[Entry]:
        """List objects in the order of the server."""
        with self._explained(prefix):
            for page in obstore.list(self._store, prefix, chunk_size=1000):
                for row in page:
                    yield Entry(row["path"], row["size"], row["last_modified"], row["e_tag"])

    def get(self, name: str) -> bytes | None:
        """Return an object, or None if it does not exist."""
        with self._explained(name):
            try:
                return bytes(obstore.get(self._store, name).bytes())
            except _MISSING:
                return None

    def changed(self, name: str, tag: str | None) -> tuple[bytes | None, str | None]:
        """Return the object and its tag, None and `tag` if unchanged, or None and None if it does not exist."""
        with self._explained(name):
            try:
                answer = obstore.get(self._store, name, options={"if_none_match": tag} if tag else {})
                content = bytes(answer.bytes())
            except NotModifiedError:
                return None, tag
            except _MISSING:
                return None, None
            return (None, tag) if tag and answer.meta["e_tag"] == tag else (content, answer.meta["e_tag"])

    def remove(self, names: Iterable[str]) -> None:
        """Remove objects. A missing one is no error."""
        with self._explained(""), suppress(*_MISSING):
            if some := list(names):
                obstore.delete(self._store, some)

    @contextmanager
    def _explained(self, name: str) -> Iterator[None]:
        try:
            yield
        except BaseError as error:
            said = str(error)
            is_skewed = _SKEWED.search(said)
            remedy = "; set this machine's clock" if is_skewed else ""
            refused = isinstance(error, PermissionDeniedError | UnauthenticatedError) or _REFUSED.search(said)
            line = f"{self.address}/{name}: {_line(error)}{remedy}"
            raise (PermissionError if refused or is_skewed else OSError)(line) from None


class BucketPlace:
    """`Place` of a bucket."""

    def __init__(self, bucket: Bucket) -> None:
        self._bucket = bucket

    def put(self, name: str, content: bytes) -> None:
        """Implement `Place.put`."""
        self._bucket.put(SPOOL + name, content)

    def control(self, name: str, tag: str | None) -> tuple[bytes | None, str | None]:
        """Implement `Place.control`."""
        return self._bucket.changed(f"{CONTROL}{name}.json", tag)

    def note(self, node: str, content: bytes) -> None:
        """Implement `Place.note`."""
        self._bucket.put(f"{NODES}{node}.json", content)


def _line(error: Exception) -> str:
    """Return the first line of an obstore error, with the server's message and without the request."""
    text = str(error)
    first = next((line for line in text.splitlines() if line.strip()), type(error).__name__)
    message = _MESSAGE.search(text)
    said = _REQUEST.sub(": ", first).partition(": <?xml")[0]
    said += f" ({html.unescape(message[1].strip())})" if message else ""
    return _SECRET.sub("?…", said)[:300]
