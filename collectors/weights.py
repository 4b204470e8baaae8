"""`mark(version)`: declaration of the weights that an engine has from now on, if the framework loads them itself.

    llm.collective_rpc("load_from_trainer", ...)      # whatever the framework does; returns when the weights are in
    logprobe.collectors.weights.mark(step)            # tokens sampled from here on carry this version

Tokens whose step was scheduled before the mark keep the old version. Tokens of later steps carry the new one. A request
in flight gets two spans. A mark is a normal record. It works from any process that records to the engine's data
directory or bucket, and requires no call into vLLM. It may arrive late, because the monitor assigns the versions. Call
`mark` after the load has returned. A load that the plugin sees after the last mark makes the version unknown again.
An unknown version never counts as lag 0.

On one machine marks are exact if no step runs between load and mark, because generation is paused or one thread drives
both. Otherwise tokens sampled in between count for the old version, or for none if the plugin saw the load. A change of
the wall clock has no effect there. Between machines the accuracy is that of their clocks. Marks from before the start
of an engine are not valid for it.
"""

from __future__ import annotations

import os
import threading
import time
from datetime import datetime
from pathlib import Path
from typing import Final

from logprobe.collectors.clock import Clock, machine
from logprobe.collectors.errors import ConfigurationError
from logprobe.collectors.fingerprint import Fingerprint, fingerprint
from logprobe.collectors.recorder.recorder import Recorder
from logprobe.collectors.versions import home_and_run

__all__ = ["fingerprint", "mark"]


_RECORDERS: Final[dict[tuple[Path, str], Recorder]] = {}  # of this process, by home and run
_MAKING: Final = threading.Lock()


def _recorder(home: Path, run: str) -> Recorder:
    with _MAKING:
        if (home, run) not in _RECORDERS:
            _RECORDERS[home, run] = Recorder(home, run, component="weights")
        return _RECORDERS[home, run]


def _applied(applied_at: float | datetime | None) -> tuple[float, float]:
    """Return the time at which the weights were in place, on the wall clock and on the monotonic one."""
    if applied_at is None:
        return time.time(), time.monotonic()
    wall = applied_at.timestamp() if isinstance(applied_at, datetime) else float(applied_at)
    return wall, Clock().moment(wall)


def mark(
    version: int | str,
    step: int | None = None,
    *,
    replica: str | None = None,
    adapter: str | None = None,
    applied_at: float | datetime | None = None,
    fingerprint: Fingerprint | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
    recorder: Recorder | None = None,
    home: str | os.PathLike[str] | None = None,
    run: str | None = None,
) -> bool:
    """Mark that the engines of a run have weights `version` from now on. Also write a `weights` record (source
    "trainer").

    Args:
        version: any name, which the trainer's records should also use in `weight_version`. Whole numbers allow counting
            the lag.
        step: optimizer step that produced these weights.
        replica: the engine's ``LOGPROBE_REPLICA``, or None for all engines of the run.
        adapter: name of a LoRA adapter that has this version, or None for the base weights.
        applied_at: time at which the weights were in place, in epoch seconds or as datetime. Default: now.
        fingerprint: result of `fingerprint` for the trainer's weights. Engines compute their own, and the monitor
            compares them.
        checkpoint: folder of a Hugging Face checkpoint of these weights, see `Recorder.weights`.
        recorder: recorder of the `weights` record, by default a new one.
        home: data directory, by default ``LOGPROBE_HOME``.
        run: name of the run, by default ``LOGPROBE_RUN``.

    Returns:
        True if the mark was accepted. Otherwise False (bad argument, too little memory), counted in a `health` record.

    Raises:
        ConfigurationError: `version` is missing, or data directory or run is, without a `recorder`.
    """
    if version is None or version == "":
        raise ConfigurationError("mark(version): the version is missing; pass a number or a string")
    writer = _recorder(*home_and_run(home, run)) if recorder is None else recorder
    with writer.guard("mark"):
        wall, moment = _applied(applied_at)
        return writer.weights(
            version,
            step=step,
            source="trainer",
            replica=replica,
            adapter=adapter,
            applied_at=wall,
            moment=moment,
            machine=machine(),
            fingerprint=fingerprint,
            checkpoint=checkpoint,
        )
    return False
