"""The process that `reading.Reading` starts: reads the files it is told to and takes them apart, within the limits of
that request.

It answers on what was its standard output; what libraries print goes to standard error.
"""

from __future__ import annotations

import json
import os
import pickle
import re
import resource
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import IO, Any, Final

from logprobe.collectors.errors import ConfigurationError, MissingExtraError
from logprobe.monitor import limits
from logprobe.monitor.importers.formats import named, read
from logprobe.monitor.importers.reading import CONTENT, END, FRAME, MEMORY, MISSING, REFUSED, expanded
from logprobe.monitor.importers.source import EarlierPiece, Unit, Wanted, pieces

_FILE_BYTES: Final = 1 << 16  # torch writes a few to find a temporary folder; nothing else is written here
_USED: Final = re.compile(r"VmData:\s+(\d+) kB")


def main() -> None:
    """Answers requests until no more requests come."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    resource.setrlimit(resource.RLIMIT_FSIZE, (_FILE_BYTES, _FILE_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    for line in sys.stdin.buffer:
        request = json.loads(line)
        _limit_memory(request["memory"])
        try:
            _answer(request, answers)
        except BrokenPipeError:  # nobody wants to know any more
            return


def _limit_memory(size: int) -> None:
    """So much beside what the interpreter and its libraries hold already. Data, not addresses: mapped files cost
    nothing."""
    used = _USED.search(Path("/proc/self/status").read_text(encoding="ascii")) if sys.platform == "linux" else None
    if used is not None:
        most = int(used[1]) * 1024 + size
        resource.setrlimit(resource.RLIMIT_DATA, (most, resource.getrlimit(resource.RLIMIT_DATA)[1]))


def _answer(request: Mapping[str, Any], answers: IO[bytes]) -> None:
    form, path = request["form"], Path(request["path"])
    try:
        for answer in _parts(form, path, request):
            _send(answers, CONTENT, pickle.dumps(answer, pickle.HIGHEST_PROTOCOL))
        _send(answers, END)
    except BrokenPipeError:
        raise
    except MemoryError:  # pyarrow's is one too
        _send(answers, MEMORY)
    except MissingExtraError as error:
        _send(answers, MISSING, str(error).encode())
    except ConfigurationError as error:
        _send(answers, REFUSED, str(error).encode(errors="replace"))
    except Exception as error:  # noqa: BLE001 - what a parser makes of hostile bytes is nobody's to foresee
        words = f"{path}: cannot be read as {form} ({type(error).__name__}: {error})"
        _send(answers, REFUSED, words.encode(errors="replace"))


def _parts(form: str, path: Path, request: Mapping[str, Any]) -> Iterator[Any]:
    """The pieces that are asked for, or the units of a recorded run."""
    if request["wanted"] is None:
        return _sized(read(form, path, 0, ended=True), path, request["most"])
    earlier = tuple(EarlierPiece(**piece) for piece in request["wanted"]["earlier"])
    wanted = Wanted(**{**request["wanted"], "path": path, "earlier": earlier})
    units = read(form, path, wanted.offset, ended=wanted.ended)
    return pieces(named(form), wanted, _sized(units, path, request["most"]))


def _sized(units: Iterator[Unit], path: Path, most: int) -> Iterator[Unit]:
    """With their sizes; one that is too large goes without its value: a line costs itself, not the import.

    Raises `ConfigurationError` when there is more of them than the file may expand to.
    """
    total = 0
    for unit in units:
        size = len(pickle.dumps(unit, pickle.HIGHEST_PROTOCOL))
        if size > limits.IMPORT_UNIT.value:
            words = str(limits.IMPORT_UNIT.exceeded(f"it takes {size:,} bytes"))
            yield Unit(unit.content[:64], error=words, end=unit.end)
            continue
        total += size
        if total > most:
            raise expanded(path, most)
        yield replace(unit, size=size)


def _send(answers: IO[bytes], kind: bytes, content: bytes = b"") -> None:
    answers.write(FRAME.pack(kind, len(content)) + content)
    if kind != CONTENT:
        answers.flush()


if __name__ == "__main__":
    main()
