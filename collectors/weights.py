"""`mark(version)`: tell logprobe which weights an engine has from now on, when the framework loads them its own way.

    llm.collective_rpc("load_from_trainer", ...)      # whatever the framework does; returns when the weights are in
    logprobe.collectors.weights.mark(step)            # tokens sampled from here on carry this version

What it means: tokens whose step was scheduled before the mark keep the version they had; tokens of later steps carry
the new one; a request that was in flight gets two spans. A mark is a record like any other: it works from any process
that records to the home or bucket of the engine, needs no call into vLLM, and may arrive late: the monitor gives tokens
their versions. Call it after the load has returned: a load that the plugin sees after the last mark makes the version
unknown again, and unknown is never counted as lag 0.

Accuracy: exact on one machine when no step runs between the load and the mark (generation paused, or one thread drives
both); otherwise tokens sampled in that gap count for the old version, or for none when the plugin saw the load. Clocks
that are set do not matter there. Between machines it is as good as their clocks agree. Marks made before an engine
started are not valid for it.
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
    """Return when the weights were in place, on the wall clock and on the monotonic one."""
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
    """Mark that the engines of a run have weights `version` from now on; also write a `weights` record (source
    "trainer").

    Args:
        version: any name; the trainer's records should use the same in `weight_version`. Whole numbers make lag
            countable.
        step: optimizer step whose result these weights are.
        replica: the engine's ``LOGPROBE_REPLICA``; None: all engines of the run.
        adapter: name of a LoRA adapter that has this version; None: the weights below the adapters.
        applied_at: when the weights were in place, epoch seconds or datetime; default: now.
        fingerprint: what `fingerprint` made of the trainer's weights; engines take their own, and the monitor compares.
        checkpoint: folder of a Hugging Face checkpoint of these weights, see `Recorder.weights`.
        recorder: writes the `weights` record; default: its own.
        home: default: ``LOGPROBE_HOME``.
        run: default: ``LOGPROBE_RUN``.

    Returns:
        Whether the mark was taken in; False (too little memory) is counted in a `health` record.

    Raises:
        ConfigurationError: home, run or `version` is missing.
    """
    if version is None or version == "":
        raise ConfigurationError("mark(version): pass the weights' version, a number or a string")
    where, name = home_and_run(home, run)
    wall, moment = _applied(applied_at)
    writer = _recorder(where, name) if recorder is None else recorder
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
