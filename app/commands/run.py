"""`logprobe run -- COMMAND`: run a command with hooks for all known frameworks in each of its Python processes."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path

from logprobe.app.surface.arguments import Arguments, home_path
from logprobe.collectors.addresses import is_address
from logprobe.collectors.errors import ConfigurationError
from logprobe.collectors.integrations.frameworks import python_path


def run(arguments: Arguments) -> int:
    """Replace this process with the command. The command then receives all signals and sets the exit code."""
    command = list(arguments.program)
    if not command:
        raise ConfigurationError("no command given; write e.g. logprobe run -- python train.py")
    if shutil.which(command[0]) is None:
        raise ConfigurationError(f"{command[0]!r} is not a program on the PATH: logprobe run -- python train.py …")
    home = str(arguments.home) if is_address(arguments.home) else home_path(arguments)
    os.execvpe(command[0], command, environment(os.environ, home, arguments.run))  # noqa: S606 - what the user typed


def environment(inherited: Mapping[str, str], home: str, run_name: str | None) -> dict[str, str]:
    """Return the environment of the command, with the data directory, the run and the startup folder of the hooks."""
    names = {"LOGPROBE_RUN": run_name} if run_name else {}
    given = {
        "LOGPROBE_HOME": home if is_address(home) else str(Path(home).absolute()),
        "PYTHONPATH": python_path(inherited),
        **names,
    }
    return {**inherited, **given}
