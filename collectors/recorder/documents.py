"""Canonical JSON and fingerprints of configuration documents.

The same configuration has the same fingerprint in every process. Keys are sorted, sets are ordered, and values without
a JSON type become their `repr` without memory addresses.
"""

from __future__ import annotations

import dataclasses
import enum
import hashlib
import json
import re
from collections.abc import Mapping
from typing import Final

_ADDRESS: Final = re.compile(r" at 0x[0-9a-fA-F]+")
_DEEPEST: Final = 32  # configuration objects of engines can refer to themselves


def canonical_json(document: object) -> str:
    """Return `document` as JSON with sorted keys. Never raise for a value without a JSON type."""
    return json.dumps(_plain(document, _DEEPEST), sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def fingerprint(text: str) -> str:
    """Return 16 hex digits that identify `text`."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def _plain(value: object, depth: int) -> object:
    if value is None or type(value) in (bool, int, float, str):
        return value
    if depth == 0:
        return "…"
    if isinstance(value, Mapping):
        return {_key(key): _plain(item, depth - 1) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item, depth - 1) for item in value]
    if isinstance(value, set | frozenset):
        return sorted((_plain(item, depth - 1) for item in value), key=repr)
    return _plain_object(value, depth)


def _plain_object(value: object, depth: int) -> object:
    if isinstance(value, enum.Enum):
        return _plain(value.value, depth - 1)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: _plain(getattr(value, f.name, None), depth - 1) for f in dataclasses.fields(value)}
    item = getattr(value, "item", None)
    if callable(item) and getattr(value, "shape", None) == ():  # a scalar of numpy
        return _plain(item(), depth - 1)
    return _ADDRESS.sub("", repr(value))


def _key(key: object) -> str:
    return key if isinstance(key, str) else str(_plain(key, 1))
