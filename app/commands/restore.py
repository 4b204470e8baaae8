"""`logprobe restore FOLDER`: puts a backup back, then takes in what raw tokens and the spool have beyond it.

What is replaced is renamed and stays. The JSON form is that of `logprobe rebuild`.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from logprobe.app.commands import rebuild
from logprobe.app.parsers.arguments import home_path
from logprobe.monitor.home import Home
from logprobe.monitor.recovery.rebuilding import restore


def run(arguments: argparse.Namespace) -> int:
    """Restores; no service may run."""
    rebuild.show(restore(Home(home_path(arguments)), Path(arguments.folder)), as_json=arguments.json)
    return 0
