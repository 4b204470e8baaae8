"""Programs of the system that tests use, and what a test does without one.

    nginx = system_tools.path("nginx")

fails where `make test` could have installed it (root, with apt-get) and skips elsewhere, in one sentence.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

_SECONDS: Final = 600


@dataclass(frozen=True, slots=True)
class Tool:
    """A program of the system.

    Attributes:
        name: of the tool.
        programs: any of them serves.
        package: Debian's, which has it.
        tests: those that need it.
        variable: environment variable that may name its path, or None.
    """

    name: str
    programs: tuple[str, ...]
    package: str
    tests: str
    variable: str | None = None

    def found(self) -> str | None:
        """Return the path of its program, or None if it is not installed."""
        named = os.environ.get(self.variable) if self.variable else None
        places = f"{os.environ.get('PATH', '')}:/usr/sbin"
        return named or next(filter(None, (shutil.which(program, path=places) for program in self.programs)), None)


# The headless shell takes half the processor time for a page; where it cannot be had, the browser is as good.
_ALL: Final = (
    Tool(
        "Chromium",
        ("chromium-headless-shell", "chromium", "chromium-browser"),
        "chromium-headless-shell",
        "tests of pages in a browser",
        variable="CHROMIUM",
    ),
    Tool("faketime", ("faketime",), "faketime", "tests of clocks that are wrong"),
    Tool("nginx", ("nginx",), "nginx-light", "tests of the proxy of docs/cluster.md"),
    Tool("Node.js", ("npm",), "npm", "tests of the browser's scripts"),
    Tool("systemd-analyze", ("systemd-analyze",), "systemd", "tests of the units in docs/examples"),
)
TOOLS: Final = {tool.programs[0]: tool for tool in _ALL}


def may_install() -> bool:
    """Return whether this user can install packages of the system."""
    return os.geteuid() == 0 and shutil.which("apt-get") is not None


def install(tools: Sequence[Tool]) -> int:
    """Install tools with apt-get; return its exit code."""
    packages = [tool.package for tool in tools]
    print(f"installing Debian's {', '.join(packages)} (once) …", file=sys.stderr, flush=True)
    subprocess.run(["apt-get", "update", "-qq"], timeout=_SECONDS, check=False)
    done = subprocess.run(
        ["apt-get", "install", "-y", "-qq", *packages], stdout=subprocess.DEVNULL, timeout=_SECONDS, check=False
    )
    return done.returncode


def path(program: str) -> str:
    """Return the path of a tool of `TOOLS`.

    Fail the test if it is missing although `make test` could have installed it; skip the test elsewhere.
    """
    import pytest

    tool = TOOLS[program]
    found = tool.found()
    if found is not None:
        return found
    said = f"{tool.name} is not installed; run `make test` as root, or install Debian's {tool.package}"
    if may_install():
        pytest.fail(said)
    return pytest.skip(said)
