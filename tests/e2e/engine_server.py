"""A process that has imported vLLM, and forks one process for each scenario: importing is most of what a scenario costs.

Reads one JSON document per line from stdin, until it ends: ``{"command", "environment", "output", "errors"}``. Answers with the
process id of the fork, which is the leader of its session, and once that has ended with its exit code, each on a line.
"""

from __future__ import annotations

import json
import os
import runpy
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

_STDOUT, _STDERR = 1, 2


def main() -> dict[str, Any] | None:
    """What is to be run, in the fork; None: stdin has ended."""
    replies = os.dup(_STDOUT)
    os.dup2(_STDERR, _STDOUT)  # what imports print is no answer
    preload()
    sys.stdout.flush()  # a fork must not repeat it
    for line in sys.stdin:
        job = json.loads(line)
        process = os.fork()
        if process == 0:
            os.close(replies)
            return job
        os.write(replies, f"{process}\n".encode())
        code = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
        os.write(replies, f"{code}\n".encode())
    return None


def preload() -> None:
    """Imports what every scenario does, none of it logprobe's; releases of vLLM differ in their modules."""
    import vllm  # noqa: F401

    for module in (
        "transformers.models.qwen3.modeling_qwen3",
        "vllm.entrypoints.llm",
        "vllm.model_executor.models.registry",
        "vllm.model_executor.models.qwen3",
        "vllm.v1.engine.llm_engine",
        "vllm.v1.engine.core",
        "vllm.v1.worker.cpu_worker",
    ):
        with suppress(ImportError):
            __import__(module)
    assert len(list(Path("/proc/self/task").iterdir())) == 1, "a thread would be missing in every fork"
    assert not any(name.partition(".")[0] == "logprobe" for name in sys.modules)


def become(job: dict[str, Any]) -> None:
    """Makes this process one that was started with the job's command and environment."""
    os.setsid()
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    for name, descriptor in (("output", _STDOUT), ("errors", _STDERR)):
        os.dup2(os.open(job[name], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), descriptor)
    os.environ.clear()
    os.environ.update(job["environment"])
    sys.path[1:1] = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
    sys.argv = job["command"]


if __name__ == "__main__" and (job := main()):
    become(job)
    runpy.run_path(job["command"][0], run_name="__main__")
