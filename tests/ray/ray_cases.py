"""Arms on a real Ray of three nodes on this machine, one of which is killed. Run by `make campaign NAME=ray`."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from audited import Audit
from engine_process import ENGINE_ENVIRONMENT, make_models
from processes import eventually
from ray.cluster_utils import Cluster

from logprobe.monitor.proof.experiments import ray_executor
from logprobe.monitor.proof.experiments.ray_executor import RayExecutor
from logprobe.monitor.proof.scorers.running import ENGINE, FORWARD, Place, in_threads, run_scorer
from logprobe.monitor.proof.scoring import REFERENCE

_until = partial(eventually, seconds=300)
NODES = 3
BISECT = [sys.executable, "-m", "logprobe.app.cli", "bisect"]
ENGINE_ARGUMENTS = (
    "--dtype bfloat16 --logprobs-mode processed_logprobs --enforce-eager --block-size 32 --max-model-len 256"
)
# A trainer's function that says who runs it, and waits until it may return.
FUNCTION = """
import os, time
def score(sequences, model, *, name, wait=True):
    folder = os.path.dirname(__file__)
    with open(os.path.join(folder, "began"), "a") as began:
        began.write(f"{name} {os.getppid()}\\n")
    while wait and not os.path.exists(os.path.join(folder, "go")):
        time.sleep(0.05)
    return [[-float(name)] * len(sequence["response_ids"]) for sequence in sequences]
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    (tmp_path / "ours.py").write_text(FUNCTION)
    return tmp_path


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_models(tmp_path_factory.mktemp("models"))


def _job(folder: Path, **settings: Any) -> dict[str, Any]:
    return {
        "model": str(folder / "model"),
        "function": "ours:score",
        "folder": str(folder),
        "settings": settings,
        "sequences": [{"prompt_ids": [1], "response_ids": [2, 3], "temperature": 1.0}],
    }


def _began(folder: Path) -> list[tuple[str, int]]:
    """Names and workers of the arms that began."""
    lines = (folder / "began").read_text().splitlines() if (folder / "began").exists() else []
    return [(line.split()[0], int(line.split()[1])) for line in lines]


def _in_threads(executor: RayExecutor, jobs: list[dict[str, Any]]) -> tuple[threading.Thread, list[Any]]:
    """Starts the jobs; the list gets their outcomes."""
    outcomes: list[Any] = []

    def work() -> None:
        outcomes.extend(in_threads(lambda job: executor(FORWARD, job, seconds=600), jobs, NODES))

    thread = threading.Thread(target=work)
    thread.start()
    return thread, outcomes


def _lost(folder: Path, cluster: Cluster, lose: Callable[[], None]) -> list[Any]:
    """Outcomes of an arm per node, where something is lost while all of them run."""
    with RayExecutor(cluster.address) as executor:
        assert executor.place == Place(NODES, cuda=False)
        thread, outcomes = _in_threads(executor, [_job(folder, name=str(n)) for n in range(NODES)])
        _until(lambda: len(_began(folder)) == NODES)
        lose()
        _until(lambda: len(_began(folder)) > NODES or not thread.is_alive())
        (folder / "go").touch()
        thread.join()
    return outcomes


def _answers(outcomes: list[Any]) -> list[Any]:
    return [outcome.answer and outcome.answer["values"] for outcome in outcomes]


def test_the_arm_of_a_lost_node_runs_again(cluster: Cluster, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its raylet is killed; the others have no processor to spare, so it runs once one of them is done."""
    capsys.readouterr()
    (node, *_) = list(cluster.worker_nodes)

    def lose() -> None:
        cluster.remove_node(node, allow_graceful=False)
        _until(lambda: not all(_alive(worker) for _, worker in _began(folder)))  # a worker outlives its raylet a moment
        (folder / "go").touch()

    outcomes = _lost(folder, cluster, lose)
    assert _answers(outcomes) == [[[-float(n)] * 2] for n in range(NODES)]
    assert len(_began(folder)) == NODES + 1
    assert capsys.readouterr().out == ""  # what Ray says of it is not part of a document


def test_the_arm_of_a_killed_worker_runs_again(cluster: Cluster, folder: Path) -> None:
    outcomes = _lost(folder, cluster, lambda: os.kill(_began(folder)[0][1], signal.SIGKILL))
    assert _answers(outcomes) == [[[-float(n)] * 2] for n in range(NODES)]
    assert len(_began(folder)) == NODES + 1


def test_what_still_runs_ends_with_the_executor(cluster: Cluster, folder: Path) -> None:
    with RayExecutor(cluster.address) as executor:
        thread, outcomes = _in_threads(executor, [_job(folder, name=str(n)) for n in range(NODES)])
        _until(lambda: len(_began(folder)) == NODES)
    thread.join(60)
    assert [(outcome.answer, outcome.answered) for outcome in outcomes] == [(None, False)] * NODES
    _until(lambda: not any(_alive(worker) for _, worker in _began(folder)))
    assert executor(FORWARD, _job(folder, name="9"), seconds=60).error == "stopped"


def _alive(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().split(") ")[1][0] != "Z"
    except OSError:
        return False


def test_the_reference_is_equal_to_the_last_bit(cluster: Cluster, models: Path) -> None:
    rng = random.Random(3)
    sequences = [
        {
            "prompt_ids": [rng.randrange(2, 512) for _ in range(20)],
            "response_ids": [rng.randrange(2, 512) for _ in range(30)],
            "temperature": 0.7,
        }
        for _ in range(6)
    ]
    jobs = [
        {"model": str(models / "new"), "function": REFERENCE, "settings": {"dtype": dtype}, "sequences": sequences}
        for dtype in ("float32", "bfloat16", "float64")
    ]
    with RayExecutor(cluster.address) as executor:
        theirs = in_threads(lambda job: executor(FORWARD, job, seconds=600), jobs, executor.place.arms)
    ours = [run_scorer(FORWARD, job, seconds=600) for job in jobs]
    assert _answers(theirs) == _answers(ours)
    assert None not in _answers(ours)


def test_a_node_unlike_the_caller_s_machine_is_named(
    cluster: Cluster, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = _job(folder, name="1", wait=False)
    with RayExecutor(cluster.address) as executor:
        monkeypatch.setattr(ray_executor, "library_versions", lambda: ["vllm 0.1"])
        other = executor(FORWARD, job, seconds=60)
        monkeypatch.undo()
        monkeypatch.setattr(ray_executor, "weights_of", lambda _: [("config.json", 7, 0)])
        weights = executor(FORWARD, job, seconds=60)
    assert (other.answer, other.answered) == (None, False)
    assert str(other.error).endswith("; here are vllm 0.1")
    assert (weights.answer, weights.answered) == (None, False)
    assert str(weights.error).endswith(f"the files of {folder / 'model'} differ from those here")


def test_an_engine_gets_its_gpus_and_one_that_fits_no_node_says_so(cluster: Cluster, folder: Path) -> None:
    cluster.add_node(num_cpus=1, num_gpus=2)
    cluster.wait_for_nodes()
    job = {"model": str(folder / "model"), "arguments": "-tp 4", "overrides": {}, "sequences": [], "paths": []}
    with RayExecutor(cluster.address) as executor:
        assert executor.place == Place(2, cuda=True)
        assert executor._resources(2) == {"num_gpus": 2, "num_cpus": 1}
        outcome = executor(ENGINE, job, seconds=60)
        assert outcome.error == "needs 4 GPUs on one node; the largest of the cluster has 2"
        seen = executor(FORWARD, _job(folder, name="1", wait=False), seconds=120)
        assert _answers([seen]) == [[[-1.0, -1.0]]]


def test_no_cluster_gives_one_clear_line(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    sample = tmp_path / "a.jsonl"
    sample.write_text(json.dumps({"sample_id": "a", "prompt_ids": [1], "response_ids": [2]}) + "\n")
    command = [*BISECT, "--sample", str(sample), "--model", str(tmp_path / "model"), "--ray", "127.0.0.1:9"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("logprobe: --ray 127.0.0.1:9: ")
    assert done.stderr.count("\n") == 1


@pytest.mark.engine
@pytest.mark.timeout(2400)
def test_a_bisection_on_real_engines_is_the_local_one(cluster: Cluster, models: Path, tmp_path: Path) -> None:
    """A bfloat16 engine; a node is killed while its arms run. The documents differ in nothing but the engines' speed.

    The local one is watched: it sends nothing to another machine.
    """
    sample = _sample(models, tmp_path)
    given = ["--sample", str(sample), "--model", str(models / "new"), "--engine-args", ENGINE_ARGUMENTS, "--json"]
    given += ["--knobs", "dtype,max_num_seqs,enable_chunked_prefill"]
    with _bisect([*given, "--ray", cluster.address, "--cache", str(tmp_path / "theirs")]) as process:
        lines = iter(process.stderr.readline, "")
        assert any("dtype=" in line for line in lines)  # single settings have begun
        (node, *_) = list(cluster.worker_nodes)
        cluster.remove_node(node, allow_graceful=False)
        theirs, _ = process.communicate()
    audit = Audit(tmp_path)
    with _bisect([*given, "--cache", str(tmp_path / "ours")], **audit.environment) as process:
        ours, errors = process.communicate()
    assert ours, errors
    assert len(audit.started()) >= 3  # the command, and the processes that engines and forward passes are forked from
    assert audit.foreign() == []
    assert _without_speed(json.loads(theirs)) == _without_speed(json.loads(ours))
    assert json.loads(ours)["smallest_set"] == ["dtype"]


def _bisect(arguments: list[str], **more: str) -> subprocess.Popen[str]:
    environment = {**os.environ, **ENGINE_ENVIRONMENT, **more}
    return subprocess.Popen(
        [*BISECT, *arguments], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def _sample(models: Path, folder: Path) -> Path:
    """Tokens at random, whose r is of bfloat16 and whose t is of float32."""
    rng = random.Random(5)
    rows = [
        {
            "sample_id": f"s{index}",
            "prompt_ids": [rng.randrange(2, 512) for _ in range(rng.randint(3, 40))],
            "response_ids": [rng.randrange(2, 512) for _ in range(rng.randint(8, 20))],
            "temperature": 1.0,
        }
        for index in range(12)
    ]
    scores = {}
    for dtype in ("bfloat16", "float32"):
        job = {"model": str(models / "new"), "function": REFERENCE, "settings": {"dtype": dtype}, "sequences": rows}
        scores[dtype] = _answers([run_scorer(FORWARD, job, seconds=600)])[0]
    for row, r, t in zip(rows, scores["bfloat16"], scores["float32"], strict=True):
        row.update(rollout_logprobs=r, trainer_logprobs=t)
    path = folder / "sample.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def _without_speed(document: dict[str, Any]) -> dict[str, Any]:
    arms = [{**arm, "tokens_per_s": None} for arm in document["arms"]]
    return {**document, "arms": arms, "baseline": {**document["baseline"], "tokens_per_s": None}}
