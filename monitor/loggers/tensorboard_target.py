"""TensorBoard: one event per step, with all of its metrics, so that a step is there as a whole or not at all.

Values are float32, as the format has them. Our own files are told from others by their suffix.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Final
from urllib.parse import quote

from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.event_file_writer import EventFileWriter

from logprobe.monitor.importers import tensorboard as event_files
from logprobe.monitor.importers.source import Place
from logprobe.monitor.loggers.settings import TensorBoardSettings
from logprobe.monitor.loggers.standing import Standing

_SUFFIX: Final = ".logprobe"


class TensorBoardTarget:
    """Event files of one run."""

    def __init__(self, run: str, settings: TensorBoardSettings) -> None:
        """Reads what is there; writes into its own file. Raises `OSError`."""
        folder = settings.dir.expanduser() / quote(run, safe=" +=@,")
        files = list(folder.glob(f"events.out.tfevents.*.*{_SUFFIX}"))
        self.last = max((step for path in files for step in _steps(path)), default=None)  # in any file of ours
        _wait_for_a_later_second(files)
        self._writer = EventFileWriter(str(folder), filename_suffix=_SUFFIX)

    def log(self, step: int, time: datetime | None, values: Mapping[str, float]) -> None:
        """One event."""
        summary = Summary(value=[Summary.Value(tag=name, simple_value=value) for name, value in values.items()])
        moment = (time or datetime.now().astimezone()).timestamp()
        self._writer.add_event(Event(wall_time=moment, step=step, summary=summary))
        self.last = step

    def stand(self, standing: Standing) -> None:
        """TensorBoard has no place for it."""

    def flush(self) -> None:
        """On disk as far as the kernel knows."""
        self._writer.flush()

    def close(self) -> None:
        """Ends the file."""
        self._writer.close()


def _wait_for_a_later_second(files: Sequence[Path]) -> None:
    """So that TensorBoard, which reads files in the order of their names, reads the newer file later.

    A name begins with the second of its making and continues with the process: of two files of one second the later
    could be read first, and every curve would run backwards.
    """
    seconds = {path.name.split(".")[3] for path in files}
    while f"{int(time.time()):010d}" in seconds:
        time.sleep(0.05)


def _steps(path: Path) -> list[int]:
    place = Place(path, path.name, 0)
    rows = [
        row for unit in event_files.records(path) if unit.error is None for row in event_files.event(unit.value, place)
    ]
    return [columns["step"] for _, columns in rows]
