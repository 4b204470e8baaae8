"""The process that `reading.Reading` starts: reads the files it is told to, within the limits of that request.

It answers on what was its standard output; what libraries print goes to standard error.
"""

from __future__ import annotations

import json
import os
import pickle
import re
import resource
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Final

from logprobe.collectors.errors import ConfigurationError, MissingExtraError
from logprobe.monitor import limits
from logprobe.monitor.importers.formats import read
from logprobe.monitor.importers.reading import END, FRAME, MEMORY, MISSING, REFUSED, UNIT
from logprobe.monitor.importers.source import Unit

_FILE_BYTES: Final = 1 << 16  # torch writes a few to find a temporary folder; nothing else is written here
_USED: Final = re.compile(r"VmData:\s+(\d+) kB")


def main() -> None:
    """Answers requests until nobody asks any more."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    resource.setrlimit(resource.RLIMIT_FSIZE, (_FILE_BYTES, _FILE_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    for line in sys.stdin.buffer:
        request = json.loads(line)
        _limit_memory(request["memory"])
        try:
            path = Path(request["path"])
            units = read(request["form"], path, request["start"], ended=request["ended"])
            _answer(request["form"], path, units, answers)
        except BrokenPipeError:  # nobody wants to know any more
            return


def _limit_memory(size: int) -> None:
    """So much beside what the interpreter and its libraries hold already. Data, not addresses: mapped files cost nothing."""
    found = _USED.search(Path("/proc/self/status").read_text(encoding="ascii")) if sys.platform == "linux" else None
    if found is not None:
        most = int(found[1]) * 1024 + size
        resource.setrlimit(resource.RLIMIT_DATA, (most, resource.getrlimit(resource.RLIMIT_DATA)[1]))


def _answer(form: str, path: Path, units: Iterator[Unit], answers: IO[bytes]) -> None:
    try:
        for unit in units:
            _send(answers, UNIT, _packed(unit))
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


def _packed(unit: Unit) -> bytes:
    """A unit that is too large goes without its value: one line costs itself, not the import."""
    content = pickle.dumps(unit, pickle.HIGHEST_PROTOCOL)
    if len(content) <= limits.IMPORT_UNIT.value:
        return content
    words = str(limits.IMPORT_UNIT.exceeded(f"it takes {len(content):,} bytes"))
    return pickle.dumps(Unit(unit.content[:64], error=words, end=unit.end), pickle.HIGHEST_PROTOCOL)


def _send(answers: IO[bytes], kind: bytes, content: bytes = b"") -> None:
    answers.write(FRAME.pack(kind, len(content)) + content)
    if kind != UNIT:
        answers.flush()


if __name__ == "__main__":
    main()
