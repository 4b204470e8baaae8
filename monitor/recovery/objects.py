"""Raw files in the object store that a store which was lost, or put back from a backup, does not list.

Those below the home's prefix are its own if the prefix carries the id of this store, or of the one whose files ``raw/``
has, and their names say what their bytes have to be. All others stay as they are, and are named.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Final

from logprobe.collectors.errors import ObjectStoreError, SegmentError, StoreError
from logprobe.monitor import queries
from logprobe.monitor.ingest.adopting import Adopter, Source
from logprobe.monitor.objects.store import Listed
from logprobe.monitor.store.raw_files import RAW_KINDS, RawFile
from logprobe.monitor.store.store import Store

_KINDS: Final = "|".join(RAW_KINDS)
_ADDRESS: Final = re.compile(  # below the prefix, see `moving.object_address`
    rf"(?P<folder>[^/]+/(?:{_KINDS}))/(?:-?\d+--?\d+-)?(?P<name>[0-9a-f]{{32}}(?P<checksum>-[0-9a-f]{{8}})?\.parquet)"
)


_NAMELESS: Final = "its name is none that logprobe gives to the raw file of a run"
_UNVERIFIABLE: Final = (
    "an earlier logprobe wrote it, without a checksum in its name: whether it is what was written is unknown"
)
_LATER: Final = (
    "a store that is rebuilt without its objects cannot prove later that they are its own: repeat the command when the "
    "object store "
    "answers, or take `raw` out of `storage` in logprobe.yaml to do without them for good"
)


def claimed_objects(store: Store, left: list[str]) -> list[Source]:
    """Makes the home's prefix this store's if it is; → what it does not list there. What stays out is added to `left`,
    with why.

    Raises `StoreError` when the object store does not say whose the prefix is, and nothing else could say so later.
    """
    prefix = store.objects.settings.raw
    if prefix is None:
        return []
    earlier = store.raw.store_named()
    try:
        problem = store.object_owner.adopt(prefix, earlier)
        listed = [] if problem else list(store.objects.listed(prefix))
    except ObjectStoreError as error:
        if earlier in {None, store.identity()}:
            problem, listed = str(error), []
        else:
            raise StoreError(f"{error}; {_LATER}") from error
    left += [problem] if problem else []
    stored = set(store.raw_objects())
    unlisted = [entry for entry in listed if entry.url.endswith(".parquet") and entry.url not in stored]
    sources = [_source(prefix, entry, left) for entry in unlisted]
    going = set(queries.doomed_objects(store)["url"].to_pylist())
    # Of an upload that had begun the disk may have nothing any more.
    begun = set(store.query("SELECT path FROM raw_files WHERE location IS NULL")["path"].to_pylist())
    return [source for source in sources if source and (source.name not in going or source.file.path in begun)]


def _source(prefix: str, listed: Listed, left: list[str]) -> Source | None:
    address = _ADDRESS.fullmatch(listed.url.removeprefix(f"{prefix}/"))
    if address is None or address["checksum"] is None:
        left.append(f"{listed.url}: {_NAMELESS if address is None else _UNVERIFIABLE}")
        return None
    file = RawFile(f"raw/{address['folder']}/{address['name']}", listed.nbytes, listed.url)
    return Source(file, listed.written_at or datetime.now(UTC))


def readable(store: Store, objects: Iterable[Source], left: list[str]) -> list[Source]:
    """Those that are whole and this home's: all of each is read. Others are added to `left`, with why."""
    whole, adopter = [], Adopter(store)
    for source in objects:
        try:
            adopter.rows(source)
        except SegmentError as error:
            left.append(str(error))
        else:
            whole.append(source)
    return whole
