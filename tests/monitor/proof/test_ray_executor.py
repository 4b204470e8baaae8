"""`logprobe bisect --ray` without Ray. With it: `make campaign NAME=ray`."""

from __future__ import annotations

import sys

import pytest

from logprobe.collectors.errors import MissingExtraError
from logprobe.monitor.proof.experiments.ray_executor import RayExecutor, world_size


def test_without_the_package_the_command_to_install_it_is_given(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingExtraError, match=r"^--ray needs the package 'ray'; pip install 'logprobe\[ray\]'$"):
        RayExecutor("auto")


@pytest.mark.parametrize(
    ("arguments", "overrides", "gpus"),
    [
        ("", {}, 1),
        ("--tensor-parallel-size 2", {}, 2),
        ("--tensor_parallel_size=2 -pp 2 --data-parallel-size 2", {}, 8),
        ("--dtype bfloat16 -tp 2", {"tensor_parallel_size": 4}, 4),
        ("", {"tensor_parallel_size": None}, 1),
    ],
)
def test_an_engine_needs_as_many_gpus_as_its_degrees_multiply_to(arguments: str, overrides: dict, gpus: int):
    assert world_size({"arguments": arguments, "overrides": overrides}) == gpus
