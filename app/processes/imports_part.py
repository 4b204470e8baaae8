"""The folders of `imports` as a part of the service: a process per entry (`logprobe import … --follow`), restarted when
it ends.

Processes of their own, because they wait for other people's disks and hold other people's data.

imports:
  - format: prime-rl             # as in `logprobe import FORMAT`
    path: /outputs/math/token_exports
    run: math                    # the run to add it to
    files: "rank_0.jsonl"        # optional: only files of this name
"""

from __future__ import annotations

import json
import subprocess
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Annotated, Any, Final, TypeAlias

from pydantic import AfterValidator, StringConstraints, TypeAdapter

from logprobe.alerts.reloading import LOGGER, Reloaded
from logprobe.app.processes.supervisor import end, module, tethered
from logprobe.collectors.errors import ConfigurationError
from logprobe.monitor import located, settings_file
from logprobe.monitor.home import Home
from logprobe.monitor.importers.formats import FORMATS
from logprobe.monitor.service.jobs import Job, Part, Progress
from logprobe.monitor.store.store import Store

SECTION: Final = "imports"


def _format(name: str) -> str:
    if name not in FORMATS:
        raise ConfigurationError(f"unknown format {name!r}; {located.instead(name, tuple(FORMATS))}")
    return name


_Word: TypeAlias = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)]


class Import(settings_file.Settings):
    """One entry."""

    format: Annotated[_Word, AfterValidator(_format)]
    path: Path
    run: _Word
    files: _Word | None = None


_KIND: Final = TypeAdapter(tuple[Import, ...])


def load(home: Path) -> tuple[Import, ...]:
    """The entries of a home, whose relative paths start at it. Raises `ConfigurationError` that names file and line."""
    section = settings_file.section(home, SECTION)
    entries = (
        () if section is None or settings_file.is_empty(section) else settings_file.checked(section, SECTION, _KIND)
    )
    for i, entry in enumerate(entries):
        if any((entry.run, entry.format) == (other.run, other.format) for other in entries[:i]):
            raise ConfigurationError(
                f"{located.place_of(section, [i])}: format {entry.format!r} is already imported into run {entry.run!r} "
                "by an "
                "entry above; name another run"
            )
    return tuple(entry.model_copy(update={"path": home / entry.path.expanduser()}) for entry in entries)


SECONDS: Final = 1.0
_FIRST_PAUSE: Final = 1.0
_LONGEST_PAUSE: Final = 60.0
_PROVEN_SECONDS: Final = 60.0  # a process that ran this long starts over with the first pause
_STOP_SECONDS: Final = 15.0
_LAST_WORDS: Final = 2000  # characters of what a process said before it ended
_STARTING: Final[Mapping[str, Any]] = {"state": "starting"}


def imports_part(store: Store, _: threading.Event) -> Part:
    """Raises `ConfigurationError` when the home's `imports` is wrong.

    The settings are read again when they change; wrong, they are not taken over, and the job says so.
    """
    home = store.home
    entries = Reloaded(home.path, SECTION, lambda: load(home.path))
    processes = _Processes(home)

    def work() -> Progress:
        return {**processes.follow(entries.current()), **entries.report()}

    return Part(jobs=[Job("imports", SECONDS, work)], close=processes.close)


class _Process:
    """The process of one entry."""

    def __init__(self, home: Home, entry: Import) -> None:
        self._home, self._entry = home, entry
        self._process: subprocess.Popen[str] | None = None
        self._readers: list[threading.Thread] = []
        self._status: Mapping[str, Any] = _STARTING
        self._words = ""
        self._ended: str | None = None  # why, until it runs again and has said something
        self._pause, self._due, self._started = _FIRST_PAUSE, 0.0, 0.0

    def keep_running(self) -> None:
        """Starts it, also after it ended and a pause."""
        if self._process is not None and self._process.poll() is not None:
            self._handle_exit(self._process.returncode)
        if self._process is None and time.monotonic() >= self._due:
            self._start()

    def document(self) -> dict[str, object]:
        """The entry and what its process said last."""
        entry = self._entry
        status = {**self._status, **({} if self._ended is None else {"state": self._ended})}
        return {"format": entry.format, "path": str(entry.path), "run": entry.run, **status}

    def ask_to_stop(self) -> None:
        """SIGTERM."""
        if self._process is not None:
            self._process.terminate()

    def stop(self) -> None:
        """Ends it, by force after a while."""
        if self._process is not None:
            end(self._process, _STOP_SECONDS)
            self._let_go()

    def _start(self) -> None:
        entry = self._entry
        only = [] if entry.files is None else ["--files", entry.files]
        follow = ["import", entry.format, str(entry.path), "--run", entry.run, "--home", str(self._home.path)]
        self._started, self._words = time.monotonic(), ""
        self._process = subprocess.Popen(  # noqa: S603 - our own command
            tethered(module("logprobe.app.cli", *follow, *only, "--follow", "--json")),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        sources = ((self._process.stdout, self._on_status_line), (self._process.stderr, self._on_error_line))
        self._readers = [threading.Thread(target=_hear_lines, args=source, daemon=True) for source in sources]
        for reader in self._readers:
            reader.start()

    def _on_status_line(self, line: str) -> None:
        self._status, self._ended = json.loads(line), None

    def _on_error_line(self, line: str) -> None:
        self._words = line.strip()[:_LAST_WORDS] or self._words

    def _handle_exit(self, status: int) -> None:
        self._let_go()
        if time.monotonic() - self._started >= _PROVEN_SECONDS:
            self._pause = _FIRST_PAUSE
        self._due = time.monotonic() + self._pause
        why = self._words.removeprefix("logprobe: ") or f"exit status {status}"
        self._ended = f"ended unexpectedly ({why}); restart in {self._pause:g} s"
        self._pause = min(2 * self._pause, _LONGEST_PAUSE)
        LOGGER.warning("import of %s into %r %s", self._entry.path, self._entry.run, self._ended)

    def _let_go(self) -> None:
        for reader in self._readers:
            reader.join(1.0)
        if self._process is not None:
            for pipe in (self._process.stdout, self._process.stderr):
                if pipe is not None:
                    pipe.close()
        self._process, self._readers = None, []


class _Processes:
    """One process per entry; used by one thread at a time."""

    def __init__(self, home: Home) -> None:
        self._home = home
        self._running: dict[Import, _Process] = {}

    def follow(self, entries: tuple[Import, ...]) -> Progress:
        """Brings the processes in line with `entries`; → what each is doing."""
        for entry in [entry for entry in self._running if entry not in entries]:
            self._running.pop(entry).stop()
        for entry in entries:
            self._running.setdefault(entry, _Process(self._home, entry)).keep_running()
        imports = [process.document() for process in self._running.values()]
        problems = [problem for document in imports if (problem := problem_of(document))]
        return {"imports": imports, **({"problems": problems} if problems else {})}

    def close(self) -> None:
        """Ends all."""
        for process in self._running.values():
            process.ask_to_stop()
        for process in self._running.values():
            process.stop()


def problem_of(entry: Mapping[str, Any]) -> str | None:
    """What is wrong with an import; None: nothing."""
    if entry["state"] not in {"starting", "following"}:
        return f"{entry['path']}: {entry['state']}"
    return f"{entry['path']}: {entry['broken']:,} broken: {entry['shown'][0]}" if entry.get("broken") else None


def _hear_lines(pipe: IO[str], hear: Any) -> None:
    try:
        for line in pipe:
            hear(line)
    except ValueError:  # it was closed
        return
