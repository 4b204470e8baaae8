"""Runs a scenario on a real vLLM engine in a process of its own, and reads what it left in the spool."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Event
from typing import Any

from tiny_model import make_tiny_model

from logprobe.collectors.spool.segments import SegmentPath, read_segment, run_dir
from logprobe.monitor.home import Home
from logprobe.monitor.service.pipeline import Pipeline
from logprobe.monitor.store.store import Store

Rows = dict[str, dict[str, Any]]

SCENARIOS = Path(__file__).with_name("engine_scenarios.py")
ENGINE_ENVIRONMENT = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "WARNING",
    "OMP_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    # vLLM compiles one small function per process. Without that, an engine starts sooner, needs no C++ compiler, and works in a
    # checkout with a space in its path, which torch does not hand to the compiler in one piece.
    "TORCHDYNAMO_DISABLE": "1",
}


def make_models(folder: Path) -> None:
    """Two checkpoints of one tiny policy below `folder`."""
    make_tiny_model(folder / "old")
    make_tiny_model(folder / "new", seed=1, like=folder / "old")


def run_scenario(
    name: str, models: Path, *numbers: int, script: str = "engine_scenarios", timeout: float = 800, **environment: str
) -> Any:
    """What scenario `name` of `script` returned; fails with the end of its output when it did not end well."""
    command = [sys.executable, str(SCENARIOS.with_stem(script)), name, str(models), *map(str, numbers)]
    done = _run(command, _variables({"VLLM_ENABLE_V1_MULTIPROCESSING": "0", **environment}), timeout)
    lines = done.stdout.splitlines()
    answers = [line.removeprefix("RESULT ") for line in lines if line.startswith("RESULT ")]
    if done.returncode or not answers:
        raise AssertionError(
            f"scenario {name} ended with {done.returncode}:\n{done.stdout[-3000:]}\n{done.stderr[-6000:]}"
        )
    return json.loads(answers[-1])


class EngineHost:
    """A process that plays scenarios one after the other, see `engine_host`; starts with the first."""

    def __init__(self, folder: Path) -> None:
        self._log = folder / "host.log"
        self._process: subprocess.Popen[str] | None = None

    def run(self, name: str, models: Path, *numbers: int, script: str = "engine_scenarios", **environment: str) -> Any:
        """What scenario `name` of `script` returned; fails with what it raised."""
        asked = {"script": script, "name": name, "arguments": [str(models), *numbers], "environment": environment}
        process = self._started()
        process.stdin.write(json.dumps(asked) + "\n")
        process.stdin.flush()
        line = process.stdout.readline()
        if not line:
            self.close()
            raise AssertionError(f"scenario {name} ended its process:\n{self._log.read_text('utf-8')[-6000:]}")
        answer = json.loads(line)
        assert "result" in answer, f"scenario {name}: {answer['error']}\n{self._log.read_text('utf-8')[-3000:]}"
        return answer["result"]

    def _started(self) -> subprocess.Popen[str]:
        if self._process is None:
            with self._log.open("a") as log:
                self._process = subprocess.Popen(
                    [sys.executable, str(SCENARIOS.with_stem("engine_host"))],
                    env=_variables({"VLLM_ENABLE_V1_MULTIPROCESSING": "0"}),
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=log,
                    text=True,
                    start_new_session=True,
                )
        return self._process

    def close(self) -> None:
        """Ends the process. An engine that hangs is killed; one that was to end well has been shut down before."""
        process, self._process = self._process, None
        if process is not None:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.communicate()


def _variables(environment: Mapping[str, str]) -> dict[str, str]:
    """`environment`, and what a process with an engine gets besides."""
    inherited = {key: value for key, value in os.environ.items() if not key.startswith(("LOGPROBE_", "VLLM_"))}
    return {**inherited, **ENGINE_ENVIRONMENT, **environment}


def _run(command: list[str], environment: dict[str, str], timeout: float) -> subprocess.CompletedProcess[str]:
    """Runs in a session of its own, so that engines in processes of their own end with it."""
    with tempfile.TemporaryDirectory() as folder:
        output, errors = Path(folder, "output"), Path(folder, "errors")
        with output.open("wb") as out, errors.open("wb") as err:
            process = subprocess.Popen(
                command, env=environment, stdin=subprocess.DEVNULL, stdout=out, stderr=err, start_new_session=True
            )
        try:
            code = process.wait(timeout)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.kill()
            process.wait()
        return subprocess.CompletedProcess(command, code, output.read_text("utf-8"), errors.read_text("utf-8"))


def spooled(home: Path, run: str, kind: str, component: str = "") -> list[dict[str, Any]]:
    """Rows of `kind` in the spool, in the order they were written by each writer."""
    segments = [SegmentPath.parse(path) for path in sorted(run_dir(home, run).glob(f"{component}*/*.arrow"))]
    return [row for segment in segments if segment.kind == kind for row in read_segment(segment).table.to_pylist()]


@contextmanager
def ingested(home: Path) -> Iterator[Store]:
    """A store of what is in the spool, where it stays."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder, "home")
        shutil.copytree(home / "spool", copy / "spool")
        with Store.open(Home(copy)) as store:
            Pipeline(store, Event()).ingest(lambda _: None)
            yield store


def rollouts(home: Path, run: str) -> list[dict[str, Any]]:
    """Records of sequences in the spool, with the versions that marks give them."""
    with ingested(home) as store:
        stored = store.query("SELECT sample_id, spans FROM rollouts WHERE run = $run", {"run": run}).to_pylist()
    versions = {row["sample_id"]: row["spans"] for row in stored}
    return [row | {"spans": versions[row["sample_id"]]} for row in spooled(home, run, "rollout")]


def by_sample(rows: list[dict[str, Any]]) -> Rows:
    """Records of sequences by their names; each must be there once."""
    named = {row["sample_id"]: row for row in rows}
    assert len(named) == len(rows), "a sample was recorded twice"
    return named


def spans(row: dict[str, Any]) -> list[tuple[int, int, str | None]]:
    """Which of its tokens have which version."""
    return [(span["start"], span["end"], span["version"]) for span in row["spans"]]
