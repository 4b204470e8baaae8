"""Text of token ids, from a `tokenizer.json` on this machine: the section ``tokenizers`` says which one belongs to which run.

    tokenizers:
      "*": /models/qwen3/tokenizer.json
      my-run: mine/tokenizer.json      # relative to the home

Keys are patterns of run names, and the first that fits counts. The file is data: nothing is fetched, nothing in it is executed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

from pydantic import TypeAdapter

from logprobe.collectors.errors import ConfigurationError, MissingExtraError
from logprobe.monitor import limits, settings_file

SECTION: Final = "tokenizers"
_KIND: Final = TypeAdapter(dict[str, str])
_WORD: Final = "\u2581"  # what SentencePiece writes for a space
_FALLBACK: Final = re.compile("<0x([0-9A-F]{2})>")  # and for a byte that is in no word of it


class Vocabulary:
    """Pieces of text by token id."""

    def __init__(self, tokenizer: Any, *, bytelevel: bool) -> None:
        """`tokenizer`: of the package tokenizers; `bytelevel`: whether its pieces spell bytes as letters, as GPT-2's do."""
        self._tokenizer = tokenizer
        self._bytelevel = bytelevel
        self._added = {token: added.content for token, added in tokenizer.get_added_tokens_decoder().items()}

    def texts(self, ids: Iterable[int]) -> dict[int, str]:
        """Text of each id that the vocabulary has; bytes that are no character by themselves as Python's surrogate escapes."""
        pieces = {token: self._tokenizer.id_to_token(token) for token in ids if token >= 0}
        known = {token: self._text(piece) for token, piece in pieces.items() if piece is not None}
        # These are written as they are
        return known | {token: self._added[token] for token in known if token in self._added}

    def _text(self, piece: str) -> str:
        if byte := _FALLBACK.fullmatch(piece):
            return bytes.fromhex(byte[1]).decode("utf-8", errors="surrogateescape")
        if not self._bytelevel:
            return piece.replace(_WORD, " ")
        if not all(letter in _BYTES for letter in piece):
            return piece
        return bytes(_BYTES[letter] for letter in piece).decode("utf-8", errors="surrogateescape")


def vocabulary(home: Path, run: str) -> Vocabulary | None:
    """That of `run`; None when nobody named one.

    Raises:
        ConfigurationError: the section ``tokenizers`` or the file it names cannot be read; the message says which.
        MissingExtraError: the package tokenizers is not installed.
    """
    path = _path(home, run)
    if path is None:
        return None
    try:
        return _loaded(path, path.stat().st_mtime_ns)
    except OSError as error:
        raise ConfigurationError(f"{SECTION}: no tokenizer at {path} ({error.strerror})") from error


def _path(home: Path, run: str) -> Path | None:
    for pattern, place in settings_file.read(home, SECTION, _KIND, {}).items():
        if fnmatchcase(run, pattern):
            path = home / Path(place).expanduser()
            return path / "tokenizer.json" if path.is_dir() else path
    return None


@lru_cache(maxsize=4)
def _loaded(path: Path, _: int) -> Vocabulary:
    try:
        from tokenizers import Tokenizer  # noqa: PLC0415 -- an optional extra
    except ImportError as error:
        raise MissingExtraError("text of tokens needs the package tokenizers; pip install 'logprobe[text]'") from error
    try:
        content = limits.read_text(path, limits.TOKENIZER)
        tokenizer = Tokenizer.from_str(content)
        decoder = json.loads(content).get("decoder")
    except (OSError, ConfigurationError):
        raise
    except Exception as error:  # tokenizers raises nothing more particular
        raise ConfigurationError(f"{path} is no tokenizer.json: {error}") from error
    return Vocabulary(tokenizer, bytelevel="ByteLevel" in _decoders(decoder))


def _decoders(decoder: Mapping[str, Any] | None) -> set[str]:
    """Types of a decoder and of those it is made of."""
    if not isinstance(decoder, dict):
        return set()
    return {str(decoder.get("type"))}.union(*(_decoders(part) for part in decoder.get("decoders") or ()))


def _bytes_of_letters() -> dict[str, int]:
    """GPT-2's spelling: printable bytes stand for themselves, the others follow from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(0x100) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(0x100 + place): byte for place, byte in enumerate(others)}


_BYTES: Final = _bytes_of_letters()
