"""Export of step metrics and verdicts to TensorBoard, Weights & Biases and trackio.

The exporter reads the newest step of a target. A killed process resumes after the last step that arrived, and a second
process adds nothing. No target can revise a step. A step recomputed after its push keeps its first values, and a late
step below the newest one is omitted.
"""

from __future__ import annotations

import importlib.util
import math
import struct
import sys
import time as clock
import zlib
from collections.abc import Iterator, Mapping
from contextlib import redirect_stdout
from dataclasses import asdict, dataclass
from datetime import datetime
from fnmatch import fnmatchcase
from hashlib import sha256
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Annotated, Any, Final, Literal, TypeAlias
from urllib.parse import quote

from pydantic import Field

from logprobe.collectors.errors import ConfigurationError, MissingExtraError
from logprobe.monitor import queries
from logprobe.monitor.home import Home
from logprobe.monitor.judgement import SEVERITIES, Severity
from logprobe.monitor.metrics.catalog import KEYS
from logprobe.monitor.queries import Source
from logprobe.monitor.settings.settings_file import Settings

PREFIX: Final = "logprobe/"
_Name: TypeAlias = Annotated[str, Field(min_length=1, max_length=128)]
_END: Final = 2**62
_BATCH_STEPS: Final = 256  # with some two hundred metrics each


@dataclass(frozen=True, slots=True)
class Standing:
    """Judgement of a run, with a description for users.

    Attributes:
        severity: severity of the run.
        verdict: verdict of the diagnosis, or None before the first.
        cause: leading finding or firing alert, or "" without a fault or an explanation.
        since_step: onset of the fault, or None without a fault or a known onset.
        words: summary in one sentence.
        link: URL of the run's page, or None without a dashboard.
        step: newest judged step, or None.
    """

    severity: Severity
    verdict: str | None
    cause: str
    since_step: int | None
    words: str
    link: str | None = None
    step: int | None = None

    @property
    def essence(self) -> tuple[object, ...]:
        """Fields that distinguish two standings, without steps and numbers."""
        return self.severity, self.verdict, self.cause, self.since_step

    @property
    def text(self) -> str:
        """Text of an alert."""
        return self.words if self.link is None else f"{self.words}\n{self.link}"

    def alerts_after(self, before: str | None) -> bool:
        """Return whether the run became worse than `before` and is critical or warning. `before`: severity, or None if
        unknown.
        """
        worse = before not in SEVERITIES or SEVERITIES.index(self.severity) < SEVERITIES.index(before)
        return worse and self.severity in {"critical", "warning"}


class Target:
    """One run in another dashboard.

    Attributes:
        last: newest step of the target, or None.
        severity: severity last sent to the target, or None.
    """

    last: int | None = None
    severity: str | None = None

    def log(self, step: int, time: datetime | None, values: Mapping[str, float]) -> None:
        """Log one step, in ascending order. `time`: time of the step in UTC."""
        raise NotImplementedError

    def stand(self, standing: Standing) -> None:
        """Show the run's standing if the target supports this. Call this after each change and after opening the
        target.
        """

    def flush(self) -> None:
        """Block until the logged steps survive the end of this process, as far as the target permits."""

    def close(self) -> None:
        """Write all pending steps and close the target."""
        raise NotImplementedError


def push(source: Source, run: str, target: Target, *, up_to: int | None = None) -> int:
    """Log the steps of `run` up to `up_to` that `target` lacks. Return their number. Raises the errors of the source
    and of the target.
    """
    after = -1 if target.last is None else target.last
    wanted = {"run": run, "up_to": _END if up_to is None else up_to, "count": _BATCH_STEPS}
    logged = 0
    while rows := queries.push_steps(source, after=after, **wanted).to_pylist():
        for (step, time), of_step in groupby(rows, key=itemgetter("step", "time")):
            # A step without a known value is not logged as an empty one.
            if values := named({row["metric"]: row["value"] for row in of_step}):
                target.log(step, time, values)
                logged += 1
        target.flush()
        after = rows[-1]["step"]
    return logged


def named(values: Mapping[str, Any]) -> dict[str, float]:
    """Return the metrics of a step by their names in targets, without unknown metrics.

    >>> named({"reward": 1.0, "backend.k3_kl": 0.5, "backend.kl": None, "not_of_the_catalog": 2.0})
    {'logprobe/backend/k3_kl': 0.5, 'logprobe/reward': 1.0}
    """
    measured = {key: values[key] for key in KEYS if values.get(key) is not None}
    return {PREFIX + key.replace(".", "/"): float(value) for key, value in measured.items() if math.isfinite(value)}


class _Logger(Settings):
    runs: str = "*"
    """pattern of run names"""

    def wants(self, run: str) -> bool:
        """Return whether the run is selected for export."""
        return fnmatchcase(run, self.runs)


class TensorBoardSettings(_Logger):
    """Event files in a folder per run below `dir`."""

    to: Literal["tensorboard"]
    """tensorboard, wandb or trackio"""
    dir: Path
    """of event files (required), or of wandb's files (default: below the data directory)"""


class WandbSettings(_Logger):
    """Separate run in a project of Weights & Biases. `offline`: true to write files below `dir` for ``wandb sync``."""

    to: Literal["wandb"]
    """tensorboard, wandb or trackio"""
    project: _Name
    """of wandb and trackio"""
    entity: str | None = None
    """of wandb"""
    offline: bool = False
    """of wandb: write files only, for `wandb sync`"""
    dir: Path | None = None
    """of event files (required), or of wandb's files (default: below the data directory)"""


class TrackioSettings(_Logger):
    """Run in a local project of trackio, in ``TRACKIO_DIR`` or trackio's own folder."""

    to: Literal["trackio"]
    """tensorboard, wandb or trackio"""
    project: _Name
    """of wandb and trackio"""


Logger: TypeAlias = Annotated[TensorBoardSettings | WandbSettings | TrackioSettings, Field(discriminator="to")]


def require(name: str) -> None:
    """Raise `MissingExtraError` if the package that writes to `name` is not installed."""
    if importlib.util.find_spec(name) is None:
        raise MissingExtraError(f"pushing to {name} needs the package {name!r}; pip install 'logprobe[{name}]'")


def open_target(settings: Logger, run: str, home: Home) -> Target:
    """Open a target after its newest step. Raises `MissingExtraError`, and the target's error if it is unreachable."""
    require(settings.to)
    if isinstance(settings, TensorBoardSettings):
        return _TensorBoard(settings, run)
    if isinstance(settings, WandbSettings):
        return _Wandb(settings, run, settings.dir or home.path / "pushed" / "wandb")
    return _Trackio(settings, run)


class _TensorBoard(Target):
    """Target of event files with one event per step, which makes a step atomic. Values are float32. The verdict is
    omitted.
    """

    def __init__(self, settings: TensorBoardSettings, run: str) -> None:
        from tensorboard.backend.event_processing.event_file_loader import LegacyEventFileLoader  # noqa: PLC0415
        from tensorboard.summary.writer.event_file_writer import EventFileWriter  # noqa: PLC0415 - an extra

        folder = settings.dir.expanduser() / quote(run, safe=" +=@,")
        files = list(folder.glob("events.out.tfevents.*.*.logprobe"))
        events = (event for path in files for event in LegacyEventFileLoader(str(path)).Load())
        self.last = max((event.step for event in events if event.HasField("summary")), default=None)
        # TensorBoard reads files in the order of their names, which begin with the second of their making and continue
        # with the process. Of two files of one second the later could be read first, and curves would run backwards.
        seconds = {path.name.split(".")[3] for path in files}
        while f"{int(clock.time()):010d}" in seconds:
            clock.sleep(0.05)
        self._writer = EventFileWriter(str(folder), filename_suffix=".logprobe")

    def log(self, step: int, time: datetime | None, values: Mapping[str, float]) -> None:
        from tensorboard.compat.proto.event_pb2 import Event  # noqa: PLC0415 - an extra
        from tensorboard.compat.proto.summary_pb2 import Summary  # noqa: PLC0415 - an extra

        summary = Summary(value=[Summary.Value(tag=name, simple_value=value) for name, value in values.items()])
        moment = (time or datetime.now().astimezone()).timestamp()
        self._writer.add_event(Event(wall_time=moment, step=step, summary=summary))
        self.last = step

    def flush(self) -> None:
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()


# Nothing of the machine, its repository or its output: only metrics were asked for.
_WANDB: Final = {
    "console": "off", "silent": True, "disable_git": True, "disable_code": True,
    "x_disable_stats": True, "x_disable_meta": True, "x_disable_machine_info": True,
}  # fmt: skip


class _Wandb(Target):
    """W&B run separate from the trainer's, because a run accepts steps in order from one process only.

    The id of the W&B run derives from the run's name, so that a new process continues it. The newest step is read from
    W&B's files below `folder`, and online also from the server.
    """

    def __init__(self, settings: WandbSettings, run: str, folder: Path) -> None:
        import wandb  # noqa: PLC0415 - an extra

        folder = folder.expanduser()
        folder.mkdir(parents=True, exist_ok=True)
        self._name, name = run, wandb_id(run)
        steps = [step for path in folder.glob(f"wandb/*run-*/run-{name}.wandb") for step in _wandb_steps(path)]
        online = not settings.offline
        self._run = wandb.init(
            project=settings.project, entity=settings.entity, id=name, name=f"{run} (logprobe)", dir=str(folder),
            mode="online" if online else "offline", resume="allow" if online else None, reinit="create_new",
            settings=wandb.Settings(**_WANDB),
        )  # fmt: skip
        if online and self._run.step:
            steps.append(self._run.step - 1)
        self.last = max(steps, default=None)

    def log(self, step: int, time: datetime | None, values: Mapping[str, float]) -> None:
        stamp = {} if time is None else {"_timestamp": time.timestamp()}
        self._run.log({**values, **stamp}, step=step, commit=True)  # sent without waiting for the next step
        self.last = step

    def stand(self, standing: Standing) -> None:
        run = self._run
        before = self.severity or run.summary.get(f"{PREFIX}severity")  # of an earlier process: online only
        summary = {name: value for name, value in asdict(standing).items() if name != "step"}
        run.summary.update({f"{PREFIX}{name}": None if value == "" else value for name, value in summary.items()})
        others = (tag for tag in run.tags or () if not tag.startswith("logprobe:"))
        run.tags = (*others, f"logprobe:{standing.severity}")
        if standing.alerts_after(before):
            level = "ERROR" if standing.severity == "critical" else "WARN"
            run.alert(title=f"{self._name}: {standing.severity}", text=standing.text, level=level)
        self.severity = standing.severity

    def close(self) -> None:
        self._run.finish()


def wandb_id(run: str) -> str:
    """Return the id of a run in W&B, a function of the arguments alone."""
    return f"logprobe-{sha256(run.encode()).hexdigest()[:16]}"


_HEADER: Final = b":W&B\xe1\xbe\x00"  # with the version
_PIECE: Final = struct.Struct("<IHB")  # checksum, length, kind
_BLOCK: Final = 32_768
_WHOLE, _FIRST, _LAST = 1, 2, 4  # kinds of pieces


def _wandb_steps(path: Path) -> Iterator[int]:
    """Yield the steps in a ``run-<id>.wandb``. The package wandb offers no public reader of these files."""
    from wandb.proto.wandb_internal_pb2 import Record  # noqa: PLC0415 - an extra

    for content in _wandb_records(path):
        record = Record.FromString(content)
        if record.HasField("history"):
            yield record.history.step.num


def _wandb_records(path: Path) -> Iterator[bytes]:
    """Yield the complete records of a file, which has a header and blocks of pieces, as in LevelDB's log.

    A damaged piece invalidates the rest of its block, a truncated end the last record. Raises `ConfigurationError` for
    a file of another version, since pushing its steps again would duplicate them.
    """
    with path.open("rb") as file:
        if not _HEADER.startswith(head := file.read(len(_HEADER))):
            raise ConfigurationError(f"{path} was written by an unknown version of wandb; sync it and move it away")
        size, begun = _BLOCK - len(head), None
        while block := file.read(size):
            size, at = _BLOCK, 0
            while at + _PIECE.size <= len(block):
                check, length, kind = _PIECE.unpack_from(block, at)
                content = block[at + _PIECE.size : at + _PIECE.size + length]
                if len(content) < length or zlib.crc32(bytes([kind]) + content) != check:
                    begun = None
                    break
                at += _PIECE.size + length
                begun = content if kind in {_WHOLE, _FIRST} else None if begun is None else begun + content
                if kind in {_WHOLE, _LAST} and begun is not None:
                    yield begun
                    begun = None


class _Trackio(Target):
    """Run of trackio, which writes every half second. Rows that a killed process did not write are pushed again.

    Trackio has no summary, so the verdict is sent as an alert.
    """

    def __init__(self, settings: TrackioSettings, run: str) -> None:
        import trackio  # noqa: PLC0415 - an extra

        self._trackio, self._name = trackio, run
        self.last = trackio.SQLiteStorage.get_max_step_for_run(settings.project, run)
        alerts = trackio.SQLiteStorage.get_alerts(settings.project, run_name=run)  # of earlier processes
        if newest := max(alerts, key=lambda alert: str(alert["timestamp"]), default=None):
            self.severity = "critical" if newest["level"] == "error" else "warning"
        with redirect_stdout(sys.stderr):  # it greets on stdout, which is for results
            self._run = trackio.init(
                project=settings.project, name=run, resume="allow", embed=False, auto_log_gpu=False, auto_log_cpu=False
            )

    def log(self, step: int, time: datetime | None, values: Mapping[str, float]) -> None:
        del time  # trackio dates a row by its arrival
        self._run.log(dict(values), step=step)
        self.last = step

    def stand(self, standing: Standing) -> None:
        if standing.alerts_after(self.severity):
            levels = self._trackio.AlertLevel
            level = levels.ERROR if standing.severity == "critical" else levels.WARN
            title = f"{self._name}: {standing.severity}{f', {standing.cause}' if standing.cause else ''}"
            self._run.alert(title, standing.text, level=level, step=standing.step)
        self.severity = standing.severity

    def close(self) -> None:
        with redirect_stdout(sys.stderr):
            self._run.finish()
