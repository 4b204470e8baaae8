"""Follows a folder with short pauses: ``python following_program.py HOME FORMAT PATH RUN``; a status per line, at least every second, until SIGTERM."""

import sys
from pathlib import Path

from logprobe.app.commands import import_ as module
from logprobe.app.commands.import_ import follow
from logprobe.monitor.home import Home
from logprobe.monitor.importers.following import Pace
from logprobe.monitor.importers.formats import named

if __name__ == "__main__":
    home, form, path, run = sys.argv[1:]
    module._REPEAT_SECONDS = 1.0
    pace = Pace(look=0.1, again=0.2, quiet=0.4, broken=4.0)
    sys.exit(follow(Home(home), named(form), Path(path), run, json=True, pace=pace))
