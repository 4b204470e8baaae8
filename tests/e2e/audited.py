"""Which addresses processes talk to: an audit hook in every Python process that inherits an environment."""

from __future__ import annotations

import json
import socket
from ipaddress import ip_address
from pathlib import Path
from typing import Any

# Audit events that name another side, with the place of its address among the arguments.
EVENTS = {
    "socket.connect": 1,
    "socket.sendto": 1,
    "socket.sendmsg": 1,
    "socket.getaddrinfo": 0,
    "socket.gethostbyname": 0,
}
# A line is one write, since processes append at the same time.
HOOK = """
import json, os, sys

def note(event, what):
    line = json.dumps({"process": os.getpid(), "event": event, "what": what}, default=str) + "\\n"
    descriptor = os.open(%(log)r, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(descriptor, line.encode())
    os.close(descriptor)

def hook(event, arguments, events=%(events)r, note=note):
    if event in events:
        note(event, arguments[events[event]])

sys.addaudithook(hook)
note("started", sys.orig_argv)
"""


class Audit:
    """Watches the processes that are started with its `environment`."""

    def __init__(self, folder: Path) -> None:
        self._log = folder / "audit.jsonl"
        (folder / "sitecustomize.py").write_text(HOOK % {"log": str(self._log), "events": EVENTS})
        self.environment = {"PYTHONPATH": str(folder)}

    def _lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self._log.read_text().splitlines()]

    def started(self) -> list[str]:
        """Command lines of the processes."""
        return [" ".join(line["what"]) for line in self._lines() if line["event"] == "started"]

    def foreign(self) -> list[dict[str, Any]]:
        """What was sent to, or asked about, another machine."""
        return [line for line in self._lines() if line["event"] != "started" and not is_local(line["what"])]


def is_local(address: Any) -> bool:
    """Whether an address, or a host's name, is this machine; a string is the path of a Unix socket, or a name that is looked up."""
    host = address[0] if isinstance(address, list) else address
    if host is None or str(host) in ("", "localhost", socket.gethostname()) or str(host).startswith(("/", "\0")):
        return True
    try:
        return ip_address(str(host)).is_loopback
    except ValueError:
        return False
