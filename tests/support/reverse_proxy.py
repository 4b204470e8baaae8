"""A real nginx in front of a dashboard, set up as docs/cluster.md says: the test reads the configuration out of that page."""

from __future__ import annotations

import re
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import system_tools

_AROUND = """daemon off; worker_processes 1; pid "{folder}/pid"; error_log "{folder}/error.log";
events {{ worker_connections 64; }}
http {{
  access_log off;
  {temporary}
{server}
}}
"""
_KINDS = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")


def documented(page: Path) -> str:
    """The block of nginx configuration on the page."""
    return re.search(r"```nginx\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)[1]


@contextmanager
def nginx(folder: Path, server: str, port: int) -> Iterator[None]:
    """Runs nginx with `server`, listening on `port`, until the block ends."""
    program = system_tools.path("nginx")
    temporary = " ".join(f'{kind}_temp_path "{folder}/{kind}";' for kind in _KINDS)
    file = folder / "nginx.conf"
    file.write_text(_AROUND.format(folder=folder, temporary=temporary, server=server))
    process = subprocess.Popen([program, "-c", str(file), "-e", str(folder / "error.log")], stderr=subprocess.PIPE)
    try:
        deadline = time.monotonic() + 120
        while not _listening(port):
            assert process.poll() is None, process.stderr.read()
            assert time.monotonic() < deadline
            time.sleep(0.05)
        yield
    finally:
        process.terminate()
        process.wait(90)
        process.stderr.close()


def _listening(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
