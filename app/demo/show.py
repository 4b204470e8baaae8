"""The demo: a fresh home, the service and the dashboard on it, recorded runs in it, and one that continues live.

By default the live run is trained for real, by `training`: what the service decides reaches its trainer. Its twin
without a correction comes with logprobe; a checkout has more recorded runs. Of recorded runs that are chosen by name
the last one is replayed. The home stays: the commands of the tutorial ask it afterwards.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import threading
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from threading import Thread
from typing import Any, Final

from logprobe.alerts.controller.policy import SECTION
from logprobe.app.dashboard.access.settings import Access
from logprobe.app.dashboard.reading import tokenizers
from logprobe.app.processes.stack import Stack, free_port, require_extras
from logprobe.app.processes.supervisor import end, module, stop_on_signals, tethered
from logprobe.app.replay import Replay
from logprobe.collectors.addresses import default_home
from logprobe.collectors.errors import ConfigurationError, QueryError, ServiceUnavailableError
from logprobe.collectors.plain_text import complain
from logprobe.monitor import settings_file
from logprobe.monitor.home import Home
from logprobe.monitor.reader import connect
from logprobe.monitor.recorded import MANIFEST, RecordedRun

_MARK: Final = "made-by-logprobe-demo"  # a file in a home that the demo may empty
_ADDRESS: Final = "127.0.0.1"
_USUAL_PORT: Final = 8501
_OWN: Final = Path(__file__).resolve().parent  # what is installed
_CHECKOUT: Final = _OWN.parent.parent / "sample_data"
# Of the recorded runs: a reference, a fault of the engine and its fix, and the live run's twin, which nothing corrects.
SHOWN: Final = ("v0-reference", "v1-initial", "v1-fixed", "rescue-without")
TRAINED: Final = "rescue"
_TOKENIZERS: Final = {"rescue*": _OWN / "rescue.json", "*": _CHECKOUT / "tokenizers" / "task.json"}  # of these runs
_LAST: Final = 50  # steps whose reward is compared at the end
_COMPARED: Final = "reward,backend.k3_kl,weight_lag_mean"
_JOIN_SECONDS: Final = 10.0
_LOOK_SECONDS: Final = 0.5
_LEAD_STEPS: Final = 20  # that a live run shows before its onset


def run(*, names: Sequence[str] | None, speed: float, port: int | None, data: str | None, home: str | None) -> None:
    """Shows runs until Ctrl-C: `SHOWN` beside one that is trained live, or those in `names` or below `data`.

    All are there at once. The live one continues, at `speed` steps per second, from shortly before its trouble begins.
    The service is armed for one that is trained; a recording cannot react to a directive.

    Raises:
        ConfigurationError: no such recorded run, or a home that is not the demo's to use.
    """
    require_extras()
    runs = find_runs(shipped() if data is None else Path(data), names)
    with demo_home(home) as place, stop_on_signals() as stop:
        show = _replayed if names or data else _trained
        show(runs, place, speed, partial(Stack, place, access=Access(address=_ADDRESS), port=choose_port(port)), stop)
    complain(f"stopped; its home stays: logprobe show {runs[-1].run if names or data else TRAINED} --home {place.path}")


def shipped() -> Path:
    """Folder of the recorded runs that come with this logprobe."""
    return _CHECKOUT if (_CHECKOUT / "README.md").exists() else _OWN


def _trained(
    runs: Sequence[RecordedRun], home: Home, speed: float, stack: Callable[..., Stack], stop: threading.Event
) -> None:
    """Recorded runs, and one that a separate process trains."""
    _settle(home, {SECTION: {"runs": [{"match": TRAINED, "mode": "armed"}]}})
    complain(f"training {TRAINED} in {home.path}, at {speed:g} steps/s from shortly before its trouble begins")
    _lay_down(runs, home, datetime.now(UTC))
    command = [*module("logprobe.app.demo.training"), "--home", str(home.path), "--speed", str(speed)]
    trainer = subprocess.Popen(tethered(command), start_new_session=True)  # noqa: S603 - this interpreter, a script of this checkout
    try:
        shown = stack(shown=TRAINED)
        beside = f"{shown.url}/?run={TRAINED}&page=compare&baseline={runs[-1].run}&metric={_COMPARED}"
        Thread(target=_conclude, args=(trainer, home, runs[-1], beside, stop), name="conclusion", daemon=True).start()
        shown.run(stop, lambda: complain(f"beside its twin without a correction: {beside}"))
    finally:
        end(trainer, _JOIN_SECONDS)


def _conclude(
    trainer: subprocess.Popen[bytes], home: Home, twin: RecordedRun, beside: str, stop: threading.Event
) -> None:
    """Say what the correction was worth, once the training is over and computed."""
    while trainer.poll() is None and not stop.wait(_LOOK_SECONDS):
        pass
    while not stop.wait(_LOOK_SECONDS):
        kept, lost = (_reward(home, run, last=twin.steps[-1]) for run in (TRAINED, twin.run))
        if kept is not None and lost is not None:
            complain(
                f"reward of the last {_LAST} steps: {kept:.2f} with the correction, {lost:.2f} without one: {beside}"
            )
            return


def _reward(home: Home, run: str, *, last: int) -> float | None:
    """Mean reward of the last steps of a run that is computed to its end, or None."""
    statement = "SELECT avg(reward) AS reward, max(step) AS step FROM sequences WHERE run = $run AND step > $after"
    try:
        with connect(home) as reader:
            (row,) = reader.query(statement, {"run": run, "after": last - _LAST}).to_pylist()
    except (ServiceUnavailableError, QueryError):
        return None
    return row["reward"] if row["step"] == last else None


def _replayed(
    runs: Sequence[RecordedRun], home: Home, speed: float, stack: Callable[..., Stack], stop: threading.Event
) -> None:
    """Recorded runs, the last of them live."""
    _settle(home, {})
    *finished, live = runs
    start = first_live_step(live)
    complain(f"replaying {live.run} at {speed:g} steps/s, from step {live.steps[start]}, into {home.path}")
    replay = Replay(live, home.path)
    _lay_down(finished, home, replay.lay_down(start, datetime.now(UTC)))
    with _playing(replay, speed, start, partial(_is_shown, home, live, start), stop):
        stack(shown=live.run).run(stop)


def _settle(home: Home, settings: Mapping[str, Any]) -> None:
    """Writes the demo's settings; tokens of runs that are shipped have text."""
    texts = {run: str(file) for run, file in _TOKENIZERS.items() if file.exists()}
    (home.path / settings_file.FILE).write_text(json.dumps({tokenizers.SECTION: texts, **settings}), encoding="utf-8")


def _lay_down(runs: Sequence[RecordedRun], home: Home, began: datetime) -> None:
    """Whole runs, one after the other, as they were recorded; the last ended then."""
    for recorded in reversed(runs):
        began = Replay(recorded, home.path).lay_down(len(recorded.steps), began)


def find_runs(folder: Path, names: Sequence[str] | None) -> list[RecordedRun]:
    """The recorded runs in `folder`: those in `names`, else `SHOWN`, else all. Raises `ConfigurationError` when there
    are none."""
    folders = {manifest.parent.name: manifest.parent for manifest in sorted(folder.glob(f"*/{MANIFEST}"))}
    if not folders:
        raise ConfigurationError(f"no recorded runs in {folder}; pass --data DIR with folders of recorded runs")
    missing = [name for name in names or () if name not in folders]
    if missing:
        raise ConfigurationError(f"no recorded run {missing[0]!r}; there are {', '.join(folders)}")
    if names:
        return [RecordedRun(folders[name]) for name in names]
    shown = [name for name in SHOWN if name in folders]
    return [RecordedRun(folders[name]) for name in shown or folders]


def first_live_step(recorded: RecordedRun) -> int:
    """Index of the step with which a run starts to be live: shortly before its onset, or its first."""
    onset = recorded.manifest.get("onset_step")
    return 0 if onset is None else max(bisect_left(recorded.steps, onset) - _LEAD_STEPS, 0)


def choose_port(port: int | None) -> int:
    """The port asked for; by default Streamlit's usual one, or any free one when that is taken."""
    if port is not None:
        return port
    try:
        return free_port(_ADDRESS, _USUAL_PORT)
    except ConfigurationError:
        return 0


def _nameless() -> dict[str, str]:
    """The environment without the home of real runs, which is no place for a demo."""
    return {name: value for name, value in os.environ.items() if name != "LOGPROBE_HOME"}


@contextmanager
def demo_home(path: str | None) -> Iterator[Home]:
    """An empty home, which stays afterwards; emptied first if an earlier demo made it. None: beside the user's own.

    Raises `ConfigurationError` when it holds anything else.
    """
    home = Home(f"{default_home(_nameless())}-demo" if path is None else path)
    if home.path.exists() and any(home.path.iterdir()):
        if not (home.path / _MARK).exists():
            raise ConfigurationError(
                f"{home.path} is not empty and not a demo home; choose another --home for the demo"
            )
        with home.lock():  # nothing runs in it
            shutil.rmtree(home.path)
    home.create()
    (home.path / _MARK).touch()
    yield home


@contextmanager
def _playing(
    replay: Replay, speed: float, start: int, shown: Callable[[], bool], stop: threading.Event
) -> Iterator[None]:
    """The replay, in its own thread, for the duration of the block; it begins when the service has `shown` what was
    before."""
    thread = threading.Thread(target=_play, args=(replay, speed, start, shown, stop), name="replay", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(_JOIN_SECONDS)


def _play(replay: Replay, speed: float, start: int, shown: Callable[[], bool], stop: threading.Event) -> None:
    try:
        while not shown() and not stop.wait(_LOOK_SECONDS):
            pass
        replay.play(steps_per_second=speed, stop=stop, start=start)
    except Exception as error:  # noqa: BLE001 - the boundary of a thread; the dashboard stays up
        complain(f"the replay ended early: {type(error).__name__}: {error}")


def _is_shown(home: Home, recorded: RecordedRun, start: int) -> bool:
    """Return true if the service has computed the steps before the `start`-th."""
    if not start:
        return True
    try:
        with connect(home) as reader:
            of_run = {"run": recorded.run, "step": recorded.steps[start - 1]}
            return bool(reader.query("SELECT 1 FROM step_summaries WHERE run = $run AND step = $step", of_run).num_rows)
    except ServiceUnavailableError:
        return False
