"""What the service has taken from a bucket stays there, packed: many segments of a run in one uncompressed zip file.

With a bucket the truth is in the bucket. A segment's own object goes only after a pack that holds it is there, so a
service whose home is lost gets everything from the packs, and listing what is new stays cheap.

    packs/RUN/HOME-NUMBER.zip       names in it: WRITER/FILE

HOME is a random name of the home that packed, NUMBER grows. A home remembers up to which number of which home it has
taken, in ``bucket.json``.
"""

from __future__ import annotations

import io
import json
import re
import secrets
import time
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Final

from logprobe.collectors.errors import ConfigurationError, SegmentError
from logprobe.collectors.files import replace_file
from logprobe.collectors.shipping.bucket import PACKS, Bucket, Entry

FILE: Final = "bucket.json"
PACK_BYTES: Final = 32 << 20
PACK_SEGMENTS: Final = 1000
PACK_SECONDS: Final = 10.0  # a segment's own object is listed again and again for so long
_HELD_BYTES: Final = 128 << 20  # of all runs, in memory
_NAME: Final = re.compile(rf"{PACKS}([^/]+)/([0-9a-f]{{16}})-([0-9]{{10}})\.zip")


@dataclass(slots=True)
class State:
    """What a home knows of its bucket. `home`: its random name; `packed`: number of its newest pack; `taken`: up to
    which number the packs of other homes were taken."""

    address: str
    home: str
    packed: int = 0
    taken: dict[str, int] = field(default_factory=dict)
    damaged: list[str] = field(default_factory=list)  # packs that could not be read
    restored: bool = False  # control documents of a home before this one

    @classmethod
    def of(cls, folder: Path, address: str) -> State:
        """Read it, or make it. Raises `ConfigurationError` if the home belongs to another bucket, or `OSError`."""
        file = folder / FILE
        try:
            state = cls(**json.loads(file.read_text(encoding="utf-8")))
        except FileNotFoundError:
            state = cls(address, secrets.token_hex(8))
            state.save(folder)
        except (ValueError, TypeError) as error:
            raise ConfigurationError(
                f"{file} cannot be understood ({error}); remove it, and all is pulled again"
            ) from error
        if state.address != address:
            raise ConfigurationError(f"{folder} belongs to {state.address}; for {address} use another --home")
        return state

    def save(self, folder: Path) -> None:
        """Write it, durably. Raises `OSError`."""
        replace_file(folder / FILE, json.dumps(asdict(self)).encode())

    def is_taken(self, pack: Pack) -> bool:
        """Return whether what a pack holds is in this home."""
        number = self.packed if pack.home == self.home else self.taken.get(pack.home, 0)
        return pack.number <= number and pack.entry.name not in self.damaged

    def take(self, pack: Pack, *, damaged: bool) -> None:
        """Note that a pack was taken, and those of its home with a smaller number before it."""
        if pack.home == self.home:
            self.packed = max(self.packed, pack.number)
        else:
            self.taken[pack.home] = max(self.taken.get(pack.home, 0), pack.number)
        self.damaged = [name for name in self.damaged if name != pack.entry.name]
        self.damaged += [pack.entry.name] if damaged else []


@dataclass(frozen=True, slots=True)
class Pack:
    """A pack in a bucket."""

    entry: Entry
    run: str  # name of the run's folder
    home: str
    number: int


def packs(bucket: Bucket, run: str | None = None) -> Iterator[Pack]:
    """List packs of all runs, or of the run whose folder is named `run`. Raises `OSError`."""
    for entry in bucket.entries(PACKS if run is None else f"{PACKS}{run}/"):
        match = _NAME.fullmatch(entry.name)
        if match is not None:
            yield Pack(entry, match[1], match[2], int(match[3]))


def unpacked(pack: Pack, content: bytes) -> Iterator[tuple[str, bytes]]:
    """Return segments in a pack, as ``RUN/WRITER/FILE`` and bytes. Raises `SegmentError` if it is damaged."""
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as file:
            for info in file.infolist():
                if info.compress_type != zipfile.ZIP_STORED:
                    raise SegmentError(
                        "foreign", f"{pack.entry.name}: it is compressed; logprobe writes none like that"
                    )
                yield f"{pack.run}/{info.filename}", file.read(info)
    except (zipfile.BadZipFile, ValueError, OSError) as error:
        raise SegmentError("unreadable", f"{pack.entry.name}: {error}") from error


@dataclass(slots=True)
class _Open:
    """Segments of one run that are not packed yet. `since`: on the monotonic clock."""

    since: float
    segments: dict[str, bytes] = field(default_factory=dict)
    nbytes: int = 0

    def is_due(self) -> bool:
        full = self.nbytes >= PACK_BYTES or len(self.segments) >= PACK_SEGMENTS
        return full or time.monotonic() - self.since >= PACK_SECONDS


class Packer:
    """Packs what has landed. Used by one thread."""

    def __init__(self, bucket: Bucket, folder: Path, state: State) -> None:
        self._bucket, self._folder, self._state = bucket, folder, state
        self._open: dict[str, _Open] = {}

    @property
    def waiting(self) -> int:
        """Segments that are not packed yet."""
        return sum(len(one.segments) for one in self._open.values())

    def add(self, name: str, content: bytes) -> None:
        """Take a segment ``RUN/WRITER/FILE`` that is durable in the spool."""
        run, _, below = name.partition("/")
        one = self._open.setdefault(run, _Open(time.monotonic()))
        one.segments[below] = content
        one.nbytes += len(content)

    def drop(self, run: str) -> list[str]:
        """Forget what waits of a run; return names of its segments."""
        one = self._open.pop(run, None)
        return [] if one is None else [f"{run}/{below}" for below in one.segments]

    def pack(self, *, at_once: bool = False) -> list[str]:
        """Pack what is due, or all with `at_once`; return the names of segments that need no object of their own now.

        Raises `OSError`; what was not packed is packed next time.
        """
        held = sum(one.nbytes for one in self._open.values())
        packed: list[str] = []
        for run, one in list(self._open.items()):
            if at_once or held > _HELD_BYTES or one.is_due():
                self._put(run, one.segments)
                packed += self.drop(run)
        return packed

    def _put(self, run: str, segments: Mapping[str, bytes]) -> None:
        number = self._state.packed + 1
        self._bucket.put(f"{PACKS}{run}/{self._state.home}-{number:010d}.zip", _zipped(segments))
        self._state.packed = number
        self._state.save(self._folder)


def _zipped(segments: Mapping[str, bytes]) -> bytes:
    written = io.BytesIO()
    with zipfile.ZipFile(written, "w", zipfile.ZIP_STORED) as file:
        for name, content in segments.items():
            file.writestr(zipfile.ZipInfo(name), content)
    return written.getvalue()
