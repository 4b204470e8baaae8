"""`logprobe store copy FOLDER`: the store and settings of a home, and with ``--raw`` its raw tokens, as they are at one
moment.

The JSON form: ``{"folder", "home", "made_at", "store", "schema", "files", "bytes"}``.
"""

from __future__ import annotations

from pathlib import Path

from logprobe.app.surface.arguments import Arguments, home_path
from logprobe.app.text import tables
from logprobe.monitor.home import Home
from logprobe.monitor.recovery.backup import backup


def run(arguments: Arguments) -> int:
    """Makes a backup, also while the service runs."""
    done = backup(Home(home_path(arguments)), Path(arguments.folder), raw=arguments.raw)
    tables.show(done, lambda: "{folder}: {files:,} files, {bytes:,} bytes\n".format(**done), as_json=arguments.json)
    return 0
