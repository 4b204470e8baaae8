"""An object store as three operations on addresses: open, put, remove. Each fails with one sentence that names the
store.

Through Arrow, which is here anyway. obstore and fsspec would take the place of few of these lines, for reading back,
checksums and the sentences would stay; and obstore finds no profile of Amazon's configuration without boto3.
"""

from __future__ import annotations

import os
import re
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from functools import lru_cache
from io import BytesIO
from pathlib import Path, PurePosixPath
from typing import Final, NamedTuple
from urllib.parse import urlencode, urlsplit

import pyarrow as pa
from pyarrow import fs

from logprobe.collectors.errors import ObjectStoreError
from logprobe.collectors.files import fsync_folder, replace_file
from logprobe.monitor.objects import amazon
from logprobe.monitor.objects.settings import StorageSettings
from logprobe.monitor.store.raw_files import SUMMED, block_sums

_CONNECT_SECONDS: Final = 5.0
_ATTEMPTS: Final = 3
_CHUNK: Final = 8 << 20
_OPEN_FILES: Final = 256
_RETRY_SECONDS: Final = 5.0
AZURE: Final = ("abfs", "abfss")
KEY_VARIABLE: Final = "AZURE_STORAGE_KEY"  # as Azure's own command line has it
_SERVICES: Final = ("blob", "dfs")
_OWN_FOLDERS: Final = 2  # of <prefix>/<run>/<kind>/<file>
_DETAIL: Final = 160  # characters of what a library says
# Amazon's SDK adds checksums to uploads in a form that many stores which speak S3 refuse.
_CHECKSUMS: Final = "AWS_REQUEST_CHECKSUM_CALCULATION"
_CAUSES: Final = (
    (r"NO_?SUCH_?BUCKET|CONTAINER_?NOT_?FOUND", "has no such bucket"),
    (
        (
            r"ACCESS_?DENIED|INVALID_?ACCESS|SIGNATURE|EXPIRED|HTTP status "
            r"40[013]\b|credentials|AUTHORIZATION_?FAILURE|AUTHENTICATION_?FAILED|OAuth2 access "
            r"token|Unauthenticated|Permission ?denied"
        ),
        "refuses the credentials of this environment",
    ),
    (
        (
            r"NETWORK_CONNECTION|curlCode|CURLE code|network socket|from the peer|operation on closed "
            r"file|Connection|timed? ?out|UNAVAILABLE|Could not connect|SLOW_DOWN"
        ),
        "does not answer",
    ),
)


class Listed(NamedTuple):
    """An object as the object store lists it. `written_at` None: it does not say."""

    url: str
    nbytes: int
    written_at: datetime | None


class ObjectStore:
    """The object stores that a home's files lie in. Safe to share between threads."""

    def __init__(self, settings: StorageSettings) -> None:
        """Connects to nothing yet."""
        self.settings = settings
        self._sums: dict[str, array[int]] = {}
        # Objects never change: one that was opened needs not be asked for its size again.
        self._opened = lru_cache(maxsize=_OPEN_FILES)(self._open)

    def without_sums(self, urls: Iterable[str]) -> list[str]:
        """Those of which `expect` has said nothing."""
        return [url for url in urls if url not in self._sums]

    def expect(self, sums: Mapping[str, Sequence[int]]) -> None:
        """What is read of these objects has to be as `block_sums` says; of others it is not compared."""
        self._sums |= {url: array("L", of_url) for url, of_url in sums.items()}

    def size(self, url: str) -> int:
        """Bytes of an object. Raises `ObjectStoreError`."""
        with _explained(url):
            return self._opened(url)[1]

    def read(self, url: str, begin: int, length: int) -> bytes:
        """A part of an object, if the bytes around it are those that were stored. Raises `ObjectStoreError`."""
        with _explained(url):
            file, size = self._opened(url)
            sums = self._sums.get(url)
            first, last = (begin, begin + length) if sums is None else _whole_blocks(begin, begin + length, size)
            try:
                content = bytes(file.read_at(last - first, first))
            except (OSError, ValueError, pa.ArrowException):
                self._opened.cache_clear()  # a file at Google that could not be read once counts as closed
                raise
        if sums is not None and block_sums(BytesIO(content)) != sums[first // SUMMED : -(-last // SUMMED)].tolist():
            self._opened.cache_clear()  # it may be put back
            raise ObjectStoreError(f"{url}: its bytes are not those that were stored; put it back, or remove it")
        return content[begin - first :][:length]

    def put(self, path: Path, url: str) -> None:
        """Copies a file to an object and reads all of it back, whatever checksum the store states. Raises
        `ObjectStoreError`."""
        nowhere = f"{store_of(url)} has no such bucket"
        with _explained(url), path.open("rb") as source, _explained(url, missing=nowhere):
            files, key = _file_system(url, self.settings.endpoint, self.settings.region)
            if isinstance(files, fs.LocalFileSystem):
                Path(key).parent.mkdir(parents=True, exist_ok=True)
            with files.open_output_stream(key) as target:
                while chunk := source.read(_CHUNK):
                    target.write(chunk)
            if isinstance(files, fs.LocalFileSystem):
                _sync(Path(key))
            self._compare(path, files, key, url)

    def content(self, url: str) -> bytes | None:
        """A small object that may change; None: there is none. Raises `ObjectStoreError`."""
        nowhere = f"{store_of(url)} has no such bucket"
        with _explained(url, missing=nowhere):
            files, key = _file_system(url, self.settings.endpoint, self.settings.region)
            if files.get_file_info(key).type == fs.FileType.NotFound:
                return None
            with files.open_input_stream(key) as source:
                return bytes(source.read())

    def write(self, content: bytes, url: str) -> None:
        """Writes a small object. Raises `ObjectStoreError`."""
        nowhere = f"{store_of(url)} has no such bucket"
        with _explained(url, missing=nowhere):
            files, key = _file_system(url, self.settings.endpoint, self.settings.region)
            if isinstance(files, fs.LocalFileSystem):
                replace_file(Path(key), content, mode=0o644)
                return
            with files.open_output_stream(key) as target:
                target.write(content)

    def listed(self, prefix: str) -> Iterator[Listed]:
        """All objects below a prefix. Raises `ObjectStoreError`."""
        with _explained(prefix):
            files, key = _file_system(prefix, self.settings.endpoint, self.settings.region)
            below = fs.FileSelector(key, recursive=True, allow_not_found=True)
            objects = [entry for entry in files.get_file_info(below) if entry.type == fs.FileType.File]
        for entry in objects:
            yield Listed(f"{prefix}{entry.path.removeprefix(key)}", int(entry.size), entry.mtime)

    def remove(self, url: str) -> None:
        """Removes an object; one that is not there is removed already. Raises `ObjectStoreError`."""
        with _explained(url):
            files, key = _file_system(url, self.settings.endpoint, self.settings.region)
            if isinstance(files, fs.S3FileSystem):
                amazon.remove(key, self.settings.endpoint, self.settings.region)
                return
            if files.get_file_info(key).type != fs.FileType.NotFound:
                files.delete_file(key)
            if urlsplit(url).scheme in AZURE:
                _remove_empty(files, key)

    def _open(self, url: str) -> tuple[pa.NativeFile, int]:
        """The object and its size."""
        files, key = _file_system(url, self.settings.endpoint, self.settings.region)
        file = files.open_input_file(key)
        return file, _size(files, key, file)

    def _compare(self, path: Path, files: fs.FileSystem, key: str, url: str) -> None:
        with files.open_input_file(key) as stored, path.open("rb") as sent:
            same = _size(files, key, stored) == path.stat().st_size
            while same and (chunk := sent.read(_CHUNK)):
                same = stored.read(len(chunk)) == chunk
        if not same:
            raise ObjectStoreError(f"{url} differs from what was sent; it is sent again")


def _whole_blocks(begin: int, end: int, size: int) -> tuple[int, int]:
    """The bytes that have checksums and hold these."""
    return begin // SUMMED * SUMMED, min(-(-end // SUMMED) * SUMMED, size)


def _size(files: fs.FileSystem, key: str, file: pa.NativeFile) -> int:
    # A file at Google asks for its size there, and all threads of this process would wait with it.
    return int(files.get_file_info(key).size if isinstance(files, fs.GcsFileSystem) else file.size())


@lru_cache(maxsize=16)
def _connected(scheme: str, authority: str, endpoint: str | None, region: str | None) -> fs.FileSystem:
    if scheme == "s3":
        if endpoint is not None:
            os.environ.setdefault(_CHECKSUMS, "when_required")
        return fs.S3FileSystem(
            endpoint_override=endpoint,
            region=region,
            connect_timeout=_CONNECT_SECONDS,
            retry_strategy=fs.AwsStandardS3RetryStrategy(max_attempts=_ATTEMPTS),
        )
    if scheme == "file":
        return fs.LocalFileSystem()
    return _azure(scheme, authority, endpoint) if scheme in AZURE else _google(authority, endpoint)


def _google(authority: str, endpoint: str | None) -> fs.FileSystem:
    options = {"retry_limit_seconds": f"{_RETRY_SECONDS:g}"}  # without it, 15 minutes
    if endpoint is not None:
        parts = urlsplit(endpoint)
        options |= {"scheme": parts.scheme, "endpoint_override": parts.netloc}
    google, _ = fs.FileSystem.from_uri(f"gs://{authority}/?{urlencode(options)}")
    return google


def _azure(scheme: str, authority: str, endpoint: str | None) -> fs.FileSystem:
    key = os.environ.get(KEY_VARIABLE)
    if endpoint is None and key is None:
        azure, _ = fs.FileSystem.from_uri(f"{scheme}://{authority}/")
        return azure
    account, _, domain = authority.rpartition("@")[2].partition(".")
    if endpoint is None:
        where = {f"{kind}_storage_authority": f".{kind}.{domain.partition('.')[2]}" for kind in _SERVICES}
        return fs.AzureFileSystem(account, account_key=key, **where)
    parts = urlsplit(endpoint)
    if key is None and parts.scheme == "http":  # Arrow would end this process
        raise ObjectStoreError(f"{scheme}://{authority} needs a key where there is no TLS; set {KEY_VARIABLE}")
    where = {f"{kind}_storage_authority": parts.netloc for kind in _SERVICES}
    where |= {f"{kind}_storage_scheme": parts.scheme for kind in _SERVICES}
    return fs.AzureFileSystem(account, account_key=key, **where)


def _remove_empty(files: fs.FileSystem, key: str) -> None:
    """Removes the folders of an object, of its kind and of its run, when it was the last in them.

    Arrow leaves an empty object with the name of the folder behind. The caller is the only one that writes to them.
    """
    for folder in list(PurePosixPath(key).parents)[:_OWN_FOLDERS]:
        place = str(folder)
        if files.get_file_info(place).type != fs.FileType.Directory:
            continue
        if files.get_file_info(fs.FileSelector(place)):
            return
        files.delete_dir(place)


def _file_system(url: str, endpoint: str | None, region: str | None) -> tuple[fs.FileSystem, str]:
    """The file system of an address, and the object's name in it."""
    parts = urlsplit(url)
    files = _connected(parts.scheme, parts.netloc, endpoint, region)
    if parts.scheme == "file":
        return files, parts.path  # as it is: a run's name is quoted in it
    first, _, last = parts.netloc.rpartition("@")  # abfs://container@account/…, gs://anonymous@bucket/…
    return files, f"{first if first and parts.scheme in AZURE else last}{parts.path}"


@contextmanager
def _explained(url: str, missing: str | None = None) -> Iterator[None]:
    try:
        yield
    except ObjectStoreError:
        raise
    except FileNotFoundError as error:
        raise ObjectStoreError(missing or f"{url}: no such object, or no such bucket") from error
    except (OSError, ValueError, pa.ArrowException, amazon.RefusedError) as error:
        raise ObjectStoreError(f"{store_of(url)} {_cause(str(error))}") from error


def store_of(url: str) -> str:
    """The bucket of an address, as messages name it.

    >>> store_of("s3://bucket/prefix/run/training/1.parquet")
    's3://bucket'
    """
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}" if parts.netloc else url


def _cause(text: str) -> str:
    detail = " ".join(text.split())
    short = detail if len(detail) <= _DETAIL else f"…{detail[-_DETAIL:]}"
    for pattern, words in _CAUSES:
        if re.search(pattern, detail, re.IGNORECASE):
            return f"{words} ({short})"
    return f"failed ({short})"


def _sync(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())
    fsync_folder(path.parent)
