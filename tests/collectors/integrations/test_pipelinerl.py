"""What PipelineRL alone has: packed and padded micro-batches, weights between which steps pass, a launcher. The rest is in
`tests/conformance`; its own code runs in `make campaign NAME=pipelinerl`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from conformance.host import RUN, closing
from conformance.other_hosts import PipelineRl, micro_batch, packed
from spool_contents import by_sample, rows

from logprobe.collectors.integrations import pipelinerl


@pytest.fixture
def host(home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.setenv("LOGPROBE_HOME", str(home))
    monkeypatch.setenv("LOGPROBE_RUN", RUN)
    made = PipelineRl(monkeypatch, kl_coef=0.1)
    made.close = closing(monkeypatch)
    made.begin()
    return made


def test_micro_batches_of_a_step_are_numbered_on(home: Path, host: Any) -> None:
    for _ in range(2):
        host.micro_batch(packed(), 0)
    host.close()
    assert set(by_sample(home, "training")) == {f"pipelinerl-0-1-{number}" for number in range(4)}


def test_rows_that_are_padded(home: Path, host: Any) -> None:
    labels = [[-100, 4, 5, 6], [9, -100, -100, 8], [-100] * 4]  # of the last one nothing is trained on
    given = micro_batch([[3, 4, 5, 6], [0, 3, 7, 8], [0, 0, 3, 9]], labels)
    given.attention_mask = (given.input_ids != 0).long()
    given.rewards *= given.attention_mask
    chosen = host.micro_batch(given, 4)
    host.close()
    trained = by_sample(home, "training")
    assert trained["pipelinerl-0-5-0"]["trainer_logprobs"] == chosen[0].tolist()
    assert trained["pipelinerl-0-5-1"]["trainer_logprobs"] == chosen[1, 2:].tolist()  # nothing predicts the first token
    assert [row["reward"] for row in trained.values()] == [0.25] * 3
    assert trained["pipelinerl-0-5-0"]["reference_logprobs"] == [0.0] * 3


def test_weights_that_have_no_version_get_none(home: Path, host: Any) -> None:
    """Weights are sent after some steps only; what is trained in between has no name."""
    host.send(0)
    for completed, sent in enumerate([8, None, 24, None]):
        host.micro_batch(packed(sentinel=completed == 1), completed)  # a rank may have nothing but padding in a step
        if sent is not None:
            host.send(sent)
    host.close()
    found = {row["step"]: row["weight_version"] for row in by_sample(home, "training").values()}
    assert found == {1: "0", 3: None, 4: "24"}
    assert [(row["version"], row["step"]) for row in rows(home, "weights")] == [("0", None), ("8", 1), ("24", 3)]


def test_a_loss_that_fails_leaves_nothing_behind(home: Path, host: Any) -> None:
    broken = packed()
    broken.input_ids = broken.input_ids.float()  # no indices
    with pytest.raises(IndexError):
        host.micro_batch(broken, 0)
    host.micro_batch(packed(), 0)
    host.close()
    assert not host.model._forward_hooks
    assert len(by_sample(home, "training")) == 2


def test_the_processes_of_the_launcher_get_the_hooks(monkeypatch: pytest.MonkeyPatch) -> None:
    """PipelineRL's launcher replaces `PYTHONPATH`."""

    class WorldMap:
        def __init__(self, cfg: Any, verbose: bool = False) -> None:
            self.path = os.environ["PYTHONPATH"]

    module = ModuleType("world")
    vars(module)["WorldMap"] = WorldMap
    pipelinerl.world(module)
    site = str(Path(pipelinerl.__file__).with_name("site"))
    for path in ("/somewhere", f"{site}{os.pathsep}/somewhere"):
        monkeypatch.setenv("PYTHONPATH", path)
        assert module.WorldMap({}, verbose=True).path == f"{site}{os.pathsep}/somewhere"
