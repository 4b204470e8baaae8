"""The connection to a Ray cluster where Ray is not installed. With it: `make test-ray`."""

from __future__ import annotations

import sys

import pytest

from logprobe.collectors.errors import MissingExtraError
from logprobe.monitor.parallel.ray_cluster import connected


def test_without_the_package_the_command_to_install_it_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingExtraError, match=r"^--ray needs the package 'ray'; pip install 'logprobe\[ray\]'$"):
        connected("auto")
