"""Text of token ids, from a `tokenizer.json` on this machine.

The section ``tokenizers`` of the settings assigns files to runs:

    tokenizers:
      "*": /models/qwen3/tokenizer.json
      my-run: mine/tokenizer.json      # relative to the data directory

Keys are patterns of run names. The first match applies. Nothing is downloaded, and nothing in the file is executed.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from fnmatch import fnmatchcase
from functools import lru_cache
from pathlib import Path
from typing import Final

from pydantic import BaseModel, TypeAdapter, ValidationError

from logprobe.collectors.errors import ConfigurationError
from logprobe.monitor.settings import limits, settings_file

SECTION: Final = "tokenizers"
_KIND: Final = TypeAdapter(dict[str, str])
_WORD: Final = "\u2581"  # what SentencePiece writes for a space
_FALLBACK: Final = re.compile("<0x([0-9A-F]{2})>")  # and for a byte that is in no word of it


class _Model(BaseModel):
    vocab: dict[str, int] | list[tuple[str, float]]  # by piece, or in the order of ids with a score


class _Added(BaseModel):
    id: int
    content: str


class _Decoder(BaseModel):
    type: str = ""
    decoders: list[_Decoder] = []  # that a sequence of them is made of


class _File(BaseModel):
    """The vocabulary part of a `tokenizer.json`. Rules for splitting text are not read."""

    model: _Model
    added_tokens: list[_Added] = []
    decoder: _Decoder | None = None


class Vocabulary:
    """Pieces of text by token id."""

    def __init__(self, file: _File) -> None:
        vocab = file.model.vocab
        self._pieces = (
            {token: piece for piece, token in vocab.items()}
            if isinstance(vocab, dict)
            else {token: piece for token, (piece, _) in enumerate(vocab)}
        )
        self._added = {added.id: added.content for added in file.added_tokens}
        self._bytelevel = "ByteLevel" in _types(file.decoder)  # its pieces spell bytes as letters, as GPT-2's do

    def texts(self, ids: Collection[int]) -> dict[int, str]:
        """Return the text of each id in the vocabulary. Bytes of incomplete characters become surrogate escapes."""
        texts = {token: self._text(self._pieces[token]) for token in ids if token in self._pieces}
        return texts | {token: self._added[token] for token in ids if token in self._added}  # written as they are

    def _text(self, piece: str) -> str:
        if byte := _FALLBACK.fullmatch(piece):
            return bytes.fromhex(byte[1]).decode("utf-8", errors="surrogateescape")
        if not self._bytelevel:
            return piece.replace(_WORD, " ")
        if not all(letter in _BYTES for letter in piece):
            return piece
        return bytes(_BYTES[letter] for letter in piece).decode("utf-8", errors="surrogateescape")


def vocabulary(home: Path, run: str) -> Vocabulary | None:
    """Return the vocabulary of `run`, or None if no tokenizer is configured for the run.

    Raises `ConfigurationError` if the section ``tokenizers`` or its file cannot be read.
    """
    path = _path(home, run)
    if path is None:
        return None
    try:
        return _loaded(path, path.stat().st_mtime_ns)
    except OSError as error:
        raise ConfigurationError(f"{SECTION}: no tokenizer at {path} ({error.strerror}); correct the path") from error


def _path(home: Path, run: str) -> Path | None:
    for pattern, place in settings_file.read(home, SECTION, _KIND, {}).items():
        if fnmatchcase(run, pattern):
            path = home / Path(place).expanduser()
            return path / "tokenizer.json" if path.is_dir() else path
    return None


@lru_cache(maxsize=4)
def _loaded(path: Path, _: int) -> Vocabulary:
    content = limits.read_text(path, limits.TOKENIZER)
    try:
        return Vocabulary(_File.model_validate_json(content))
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"]))
        raise ConfigurationError(
            f"{path} is no tokenizer.json: {where}{': ' if where else ''}{first['msg']}; name another file in `tokenizers`"
        ) from error


def _types(decoder: _Decoder | None) -> set[str]:
    """Return the types of a decoder and of its component decoders."""
    return set() if decoder is None else {decoder.type}.union(*map(_types, decoder.decoders))


def _bytes_of_letters() -> dict[str, int]:
    """Return the byte of each letter in GPT-2's encoding.

    Printable bytes represent themselves. The others are mapped to U+0100 and above.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(0x100) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(0x100 + index): byte for index, byte in enumerate(others)}


_BYTES: Final = _bytes_of_letters()
