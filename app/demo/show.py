"""The demo: a data directory with recorded runs, service and dashboard, and one run that is trained live.

The trainer is `training`. The package has a recording of the same run without a correction. A checkout adds more
recorded runs. The data directory is kept for the commands of the tutorial.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import pyarrow.compute as pc

from logprobe.alerts.controller.policy import SECTION
from logprobe.app.dashboard.access.settings import Access
from logprobe.app.dashboard.reading import tokenizers
from logprobe.app.processes.stack import Stack, free_port, require_extras
from logprobe.app.processes.supervisor import end, module, stop_on_signals, tethered
from logprobe.collectors.addresses import default_home
from logprobe.collectors.errors import ConfigurationError
from logprobe.collectors.plain_text import complain
from logprobe.collectors.spool.segments import SpoolWriter
from logprobe.monitor.home import Home
from logprobe.monitor.recorded import RecordedRun, shifted
from logprobe.monitor.settings import settings_file

_MARK: Final = "made-by-logprobe-demo"  # a file in a data directory that the demo may empty
_ADDRESS: Final = "127.0.0.1"
_USUAL_PORT: Final = 8501
_OWN: Final = Path(__file__).resolve().parent  # what is installed
_CHECKOUT: Final = _OWN.parent.parent / "sample_data"
TRAINED: Final = "rescue"
TWIN: Final = "rescue-without"
# A reference, a fault of the engine and its fix, which only a checkout has, and the twin.
SHOWN: Final = ("v0-reference", "v1-initial", "v1-fixed", TWIN)
_TOKENIZERS: Final = {"rescue*": _OWN / "rescue.json", "*": _CHECKOUT / "tokenizers" / "task.json"}  # by run
_JOIN_SECONDS: Final = 10.0


def run(*, speed: float, port: int | None, home: str | None) -> None:
    """Train an armed run at `speed` steps per second, next to the recorded runs `SHOWN`. Return after Ctrl-C.

    The live training starts shortly before the onset.

    Raises:
        ConfigurationError: the data directory is not the demo's.
    """
    require_extras()
    with demo_home(home) as place, stop_on_signals() as stop:
        _settle(place)
        complain(f"training {TRAINED} in {place.path}, at {speed:g} steps/s from shortly before the onset")
        ended = datetime.now(UTC)
        for name in reversed(SHOWN):
            if (folder := (_OWN if name == TWIN else _CHECKOUT) / name).exists():
                ended = lay_down(RecordedRun(folder), place.path, ended)
        command = [*module("logprobe.app.demo.training"), "--home", str(place.path), "--speed", str(speed)]
        trainer = subprocess.Popen(tethered(command), start_new_session=True)  # noqa: S603 - this interpreter, a module of ours
        try:
            stack = Stack(place, access=Access(address=_ADDRESS), port=choose_port(port), shown=TRAINED)
            beside = f"{stack.url}/?run={TRAINED}&page=compare&baseline={TWIN}"
            stack.run(stop, lambda: complain(f"beside its twin without a correction: {beside}"))
        finally:
            end(trainer, _JOIN_SECONDS)
    complain(f"stopped; its home stays: logprobe show {TRAINED} --home {place.path}")


def lay_down(recorded: RecordedRun, home: Path, ended: datetime) -> datetime:
    """Write a recorded run into the spool, with times shifted to end at `ended`. Return its new start time. Raises
    `OSError`."""
    by = ended - recorded.ended
    writers: dict[str, SpoolWriter] = {}
    for kind in recorded.kinds:
        table, names = recorded.table(kind), recorded.writers(kind)
        for name in names.unique().to_pylist():
            writer = writers.setdefault(name, SpoolWriter(home, recorded.run, name))
            writer.write(kind, shifted(table.filter(pc.equal(names, name)), by).combine_chunks())
    return datetime.fromisoformat(recorded.manifest["recorded_from"]) + by


def _settle(home: Home) -> None:
    """Write the settings of the demo, with tokenizers for the packaged runs."""
    texts = {run: str(file) for run, file in _TOKENIZERS.items() if file.exists()}
    settings: dict[str, Any] = {tokenizers.SECTION: texts, SECTION: {"runs": [{"match": TRAINED, "mode": "armed"}]}}
    (home.path / settings_file.FILE).write_text(json.dumps(settings), encoding="utf-8")


def choose_port(port: int | None) -> int:
    """Return the requested port, by default that of Streamlit, or any free one if the default is taken."""
    if port is not None:
        return port
    try:
        return free_port(_ADDRESS, _USUAL_PORT)
    except ConfigurationError:
        return 0


def _nameless() -> dict[str, str]:
    """Return the environment without the data directory of real runs."""
    return {name: value for name, value in os.environ.items() if name != "LOGPROBE_HOME"}


@contextmanager
def demo_home(path: str | None) -> Iterator[Home]:
    """Yield an empty data directory, which is kept afterwards. Empty a directory of an earlier demo first.

    `None` selects the default location. Raises `ConfigurationError` if the directory contains anything else.
    """
    home = Home(f"{default_home(_nameless())}-demo" if path is None else path)
    if home.path.exists() and any(home.path.iterdir()):
        if not (home.path / _MARK).exists():
            raise ConfigurationError(
                f"{home.path} is neither empty nor of an earlier demo; choose another --home for the demo"
            )
        with home.lock():  # nothing runs in it
            shutil.rmtree(home.path)
    home.create()
    (home.path / _MARK).touch()
    yield home
