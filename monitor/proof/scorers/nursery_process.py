"""The process that arms are forked from: ``python -m logprobe.monitor.proof.scorers.nursery_process MODULE``, with that
of a scorer.

Reads folders with a job from stdin, one per line, and answers with the exit code of the process that worked on it.
"""

from __future__ import annotations

import os
import select
import signal
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

from logprobe.monitor.proof.scorers.child import Main, answer_job
from logprobe.monitor.proof.scorers.running import ANSWER, ENGINE, FORWARD, JOB, LOG

_STDIN, _STDOUT, _STDERR = 0, 1, 2
_GONE: Final = 1


def main() -> None:
    """Forks a process per line, until stdin ends."""
    replies = os.dup(_STDOUT)
    os.dup2(_STDERR, _STDOUT)  # what imports print is no reply
    scorer = _PRELOADED[sys.argv[1]]()
    for line in sys.stdin:
        os.write(replies, f"{_worked_on(scorer, Path(line.strip()))}\n".encode())


def _engine() -> Main:
    """Imports what every engine does, on whatever platform."""
    import transformers.models.auto.modeling_auto  # noqa: F401, PLC0415 - heavy
    import vllm.model_executor.models.registry  # noqa: PLC0415
    import vllm.utils.argparse_utils  # noqa: PLC0415
    import vllm.v1.engine.llm_engine  # noqa: F401, PLC0415

    from logprobe.monitor.proof.scorers import engine_process  # noqa: PLC0415 - vLLM

    return engine_process.main


def _forward() -> Main:
    """Imports what the reference does."""
    import transformers.modeling_utils  # noqa: PLC0415 - heavy
    import transformers.models.auto.modeling_auto  # noqa: F401, PLC0415

    from logprobe.monitor.proof.scorers import forward_process  # noqa: PLC0415

    return forward_process.main


_PRELOADED: Final[Mapping[str, Callable[[], Main]]] = {ENGINE: _engine, FORWARD: _forward}


def _worked_on(scorer: Main, folder: Path) -> int:
    """Exit code of a forked process that answers the job in `folder`."""
    ours, theirs = os.pipe()  # its end tells the process that this one is gone
    process = os.fork()
    if process == 0:
        os.close(theirs)
        _work(scorer, folder, ours)
    os.close(ours)
    try:
        return _waited(process)
    finally:
        os.close(theirs)
        with suppress(ProcessLookupError):
            os.killpg(process, signal.SIGKILL)  # what the scorer started


def _work(scorer: Main, folder: Path, parent: int) -> None:
    """Does not return."""
    os.setsid()
    os.dup2(parent, _STDIN)
    log = os.open(folder / LOG, os.O_WRONLY | os.O_CREAT, 0o600)
    os.dup2(log, _STDOUT)
    os.dup2(log, _STDERR)
    answer_job(scorer, folder / JOB, folder / ANSWER)


def _waited(process: int) -> int:
    """Exit code; ends both processes when stdin ends first: the process that wanted the answer is gone."""
    descriptor = os.pidfd_open(process)
    ready, _, _ = select.select([descriptor, _STDIN], [], [])
    os.close(descriptor)
    if _STDIN in ready and descriptor not in ready:
        with suppress(ProcessLookupError):
            os.killpg(process, signal.SIGKILL)
        os._exit(_GONE)
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])


if __name__ == "__main__":
    main()
