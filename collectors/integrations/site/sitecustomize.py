"""Start-up module of Python processes under `logprobe run`, which hooks frameworks that the process imports later.

Without ``LOGPROBE_HOME`` it installs no hooks. It hides a `sitecustomize` of the environment and therefore runs that
module itself.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from importlib.machinery import PathFinder

_HERE = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120 - each import costs every Python process


def _run_hidden() -> None:
    elsewhere = [path for path in sys.path if os.path.abspath(path or ".") != _HERE]  # noqa: PTH100
    spec = PathFinder.find_spec("sitecustomize", elsewhere)
    if spec is not None and spec.loader is not None:
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


_run_hidden()
if os.environ.get("LOGPROBE_HOME"):
    try:
        from logprobe.collectors.integrations.frameworks import install
    except ImportError:  # another environment, without logprobe
        pass
    else:
        install()
