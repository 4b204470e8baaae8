"""The demo: a fresh home, the service and the dashboard on it, and recorded runs replayed into it."""

from __future__ import annotations

import shutil
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from logprobe.app.dashboard.access.settings import Access
from logprobe.app.replay import Replay
from logprobe.app.stack import Stack, free_port, require_extras, say
from logprobe.app.supervisor import stop_on_signals
from logprobe.collectors.errors import ConfigurationError
from logprobe.monitor.home import Home
from logprobe.monitor.recorded import MANIFEST, RecordedRun

_MARK: Final = "made-by-logprobe-demo"  # a file in a home that the demo may empty
_ADDRESS: Final = "127.0.0.1"
_USUAL_PORT: Final = 8501
_JOIN_SECONDS: Final = 10.0


def run(*, names: Sequence[str] | None, speed: float, port: int | None, data: str | None, home: str | None) -> None:
    """Replays runs (those in `names`, or all but those that a service controlled) at `speed` steps per second until Ctrl-C.

    Raises:
        ConfigurationError: no such recorded run, or a home that is not the demo's to use.
    """
    require_extras()
    runs = find_runs(Path(data) if data else None, names)
    with demo_home(home) as place, stop_on_signals() as stop:
        stack = Stack(place, access=Access(address=_ADDRESS), port=choose_port(port))
        say(f"replaying {', '.join(recorded.run for recorded in runs)} at {speed:g} steps/s into {place.path}")
        with _playing([Replay(recorded, place.path) for recorded in runs], speed, stop):
            stack.run(stop)
    say("stopped")


def find_runs(data: Path | None, names: Sequence[str] | None) -> list[RecordedRun]:
    """The recorded runs below `data`, by default those of the checkout. Raises `ConfigurationError` when there are none."""
    folder = Path(__file__).resolve().parent.parent / "sample_data" if data is None else data
    known = {manifest.parent.name: manifest.parent for manifest in sorted(folder.glob(f"*/{MANIFEST}"))}
    if not known:
        raise ConfigurationError(
            f"no recorded runs in {folder}; they come with a checkout of the source: start the demo there, or pass --data DIR"
        )
    missing = [name for name in names or () if name not in known]
    if missing:
        raise ConfigurationError(f"no recorded run {missing[0]!r}; there are {', '.join(known)}")
    if names:
        return [RecordedRun(known[name]) for name in names]
    recorded = [RecordedRun(folder) for folder in known.values()]
    # What a service decided while a run was recorded is not decided anew in a replay: such a run is played when it is asked for.
    return [run for run in recorded if "control" not in run.manifest] or recorded


def choose_port(port: int | None) -> int:
    """The port asked for; by default Streamlit's usual one, or any free one when that is taken."""
    if port is not None:
        return port
    try:
        return free_port(_ADDRESS, _USUAL_PORT)
    except ConfigurationError:
        return 0


@contextmanager
def demo_home(path: str | None) -> Iterator[Home]:
    """An empty home: temporary by default; `path` is kept afterwards and emptied first if an earlier demo made it.

    Raises `ConfigurationError` when `path` holds anything else.
    """
    if path is None:
        with tempfile.TemporaryDirectory(prefix="logprobe-demo-", ignore_cleanup_errors=True) as folder:
            yield Home(folder)
        return
    home = Home(path)
    if home.path.exists() and any(home.path.iterdir()):
        if not (home.path / _MARK).exists():
            raise ConfigurationError(f"{home.path} is not empty, and no demo's; choose another --home for the demo")
        with home.lock():  # nothing runs in it
            shutil.rmtree(home.path)
    home.create()
    (home.path / _MARK).touch()
    yield home


@contextmanager
def _playing(replays: Sequence[Replay], speed: float, stop: threading.Event) -> Iterator[None]:
    """The replays, each in a thread of its own, for the duration of the block."""
    threads = [
        threading.Thread(target=_play, args=(replay, speed, stop), name="replay", daemon=True) for replay in replays
    ]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join(_JOIN_SECONDS)


def _play(replay: Replay, speed: float, stop: threading.Event) -> None:
    try:
        replay.play(steps_per_second=speed, stop=stop)
    except Exception as error:  # noqa: BLE001 - the boundary of a thread; the dashboard stays up
        say(f"the replay ended early: {type(error).__name__}: {error}")
