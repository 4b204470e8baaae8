"""Arms as tasks on a Ray cluster: ``logprobe bisect --ray ADDRESS``.

A task starts a scorer's process on its node, as `run_scorer` does here. Where the cluster has GPUs, an engine gets as
many as its tensor, pipeline and data parallel degrees need, all on one node; elsewhere an arm gets a node's CPUs. The
task of a killed worker or a lost node runs again. Answers return to the caller, who keeps them.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import os
import shlex
import socket
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Self

from logprobe.collectors.errors import LogprobeError
from logprobe.monitor.parallel.ray_cluster import connected, words
from logprobe.monitor.proof.experiments.arm_cache import library_versions, weights_of
from logprobe.monitor.proof.scorers.running import Outcome, Place, run_scorer

_RETRIES: Final = 5  # workers or nodes that an arm may lose
_END: Final = 30.0  # seconds in which cancelled tasks return
_DEGREES: Final = ("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size")
_SHORT: Final = ("-tp", "-pp", "-dp")
_THREADS: Final = "OMP_NUM_THREADS"


class RayExecutor:
    """A cluster that is running; an `Executor`. Raises `ConfigurationError` when there is none at `address`."""

    def __init__(self, address: str) -> None:
        """`address`: ``auto``, or as `ray.init` takes it."""
        self._ray, self._ours = connected(address)
        nodes = [node["Resources"] for node in self._ray.nodes() if node["Alive"]]
        self._gpus = [int(node.get("GPU", 0)) for node in nodes]
        self._cpus = [int(node["CPU"]) for node in nodes if node.get("CPU", 0) >= 1]
        self._task = self._ray.remote(max_retries=_RETRIES)(on_node)
        self._pending: set[Any] = set()
        self._changed = threading.Condition()
        self._closed = False
        self._printing = contextlib.redirect_stdout(sys.stderr)  # Ray's threads print; stdout is for the result

    @property
    def place(self) -> Place:
        """An arm per GPU, or per node where there are none."""
        gpus = sum(self._gpus)
        return Place(gpus or max(len(self._cpus), 1), cuda=gpus > 0)

    def __enter__(self) -> Self:
        self._printing.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        with self._changed:
            self._closed = True
            for task in self._pending:
                self._ray.cancel(task, force=True)
            self._changed.wait_for(lambda: not self._pending, timeout=_END)
        if self._ours:
            self._ray.shutdown()
        self._printing.__exit__(None, None, None)

    def __call__(
        self, module: str, job: Mapping[str, Any], *, seconds: float, environment: Mapping[str, str] | None = None
    ) -> Outcome:
        """Runs `module` on `job` on some node."""
        degree = world_size(job) if "arguments" in job else 1
        if any(self._gpus) and degree > max(self._gpus):
            return Outcome(
                None, f"needs {degree} GPUs on one node; the largest of the cluster has {max(self._gpus)}", 0.0
            )
        variables = {**self._threads(), **(environment or {})}
        weights = [entry[:2] for entry in weights_of(Path(job["model"]))]
        task = self._task.options(**self._resources(degree))
        return self._awaited(task, module, job, seconds, variables, (library_versions(), weights))

    def _resources(self, degree: int) -> dict[str, int]:
        """An engine without GPUs uses all cores of its node."""
        return {"num_gpus": degree, "num_cpus": 1} if any(self._gpus) else {"num_cpus": min(self._cpus, default=1)}

    def _threads(self) -> dict[str, str]:
        """The caller's number of threads, or the CPUs of an arm: sums of floats depend on it, so it is the same on
        every node."""
        if _THREADS in os.environ:
            return {_THREADS: os.environ[_THREADS]}
        return {} if any(self._gpus) else {_THREADS: str(min(self._cpus, default=1))}

    def _awaited(self, task: Any, *arguments: Any) -> Outcome:
        with self._changed:
            if self._closed:
                return Outcome(None, "stopped", 0.0)
            reference = task.remote(*arguments)
            self._pending.add(reference)
        try:
            outcome: Outcome = self._ray.get(reference)
        except self._ray.exceptions.RayError as error:
            return Outcome(None, words(error), 0.0)
        finally:
            with self._changed:
                self._pending.discard(reference)
                self._changed.notify_all()
        return outcome


def on_node(
    module: str,
    job: Mapping[str, Any],
    seconds: float,
    environment: Mapping[str, str],
    expected: tuple[list[str], list[tuple[str, int]]],
) -> Outcome:
    """The task: runs a scorer, unless the node has other libraries or weights than the caller, who `expected` his
    own."""
    why = _unlike(Path(job["model"]), *expected)
    if why is not None:
        return Outcome(None, f"{socket.gethostname()}: {why}", 0.0)
    os.environ.pop(_THREADS, None)  # Ray's own idea of it
    try:
        return run_scorer(module, job, seconds=seconds, environment=environment)
    except LogprobeError as error:  # a full disk
        return Outcome(None, f"{socket.gethostname()}: {error}", 0.0)


def _unlike(model: Path, versions: list[str], weights: list[tuple[str, int]]) -> str | None:
    """What a node has that the caller has not; None: nothing that matters."""
    if library_versions() != versions:
        return f"has {', '.join(library_versions()) or 'no vllm'}; here are {', '.join(versions)}"
    if not model.is_dir():
        return f"no folder {model}; a checkpoint has to be at the same path on every node"
    if [entry[:2] for entry in weights_of(model)] != weights:
        return f"the files of {model} differ from those here"
    return None


def world_size(job: Mapping[str, Any]) -> int:
    """GPUs that an engine needs.

    >>> world_size({"arguments": "--dtype bfloat16 -tp 4 --pipeline-parallel-size=2", "overrides": {}})
    8
    >>> world_size({"arguments": "-tp 4", "overrides": {"tensor_parallel_size": 1}})
    1
    """
    parser = argparse.ArgumentParser(add_help=False, exit_on_error=False, allow_abbrev=False)
    for name, short in zip(_DEGREES, _SHORT, strict=True):
        parser.add_argument(short, f"--{name.replace('_', '-')}", f"--{name}", dest=name, type=int, default=1)
    given = vars(parser.parse_known_args(shlex.split(job["arguments"]))[0])
    return math.prod(int(job["overrides"].get(name) or given[name]) for name in _DEGREES)
