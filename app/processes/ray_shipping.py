"""The process that collects records of a Ray cluster's nodes into the data directory of a service.

    python -m logprobe.app.processes.ray_shipping --home DIR --nodes FOLDER

One actor on the node of the service receives segments. An actor on every node, including those that join later, ships
the spool of that node. All actors end with this process, which `logprobe up --ray` restarts. Delivery is at least once
and segment ids remove duplicates, so a kill loses nothing. Any user of the cluster may send segments. Ray's token or
TLS controls access to the cluster.
"""

from __future__ import annotations

import argparse
import hashlib
import secrets
import signal
import socket
import sys
import threading
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from logprobe.collectors.directives import DirectiveFile
from logprobe.collectors.errors import ConfigurationError, LogprobeError, MissingExtraError, SegmentError
from logprobe.collectors.files import READABLE, replace_file
from logprobe.collectors.log_lines import log_to_stderr
from logprobe.collectors.plain_text import complain
from logprobe.collectors.shipping.control import document, nothing
from logprobe.collectors.shipping.queue import SpoolQueue
from logprobe.collectors.shipping.shipper import Shipper
from logprobe.collectors.spool.segments import run_name
from logprobe.monitor.home import apply_umask

NAMESPACE: Final = "logprobe"
NODE: Final = "{node}"  # of a folder: becomes Ray's id of the node
_IDENTITY: Final = "landing.id"  # of the home that is landed in
_LOOK_SECONDS: Final = 5.0  # between two looks at which nodes there are
_AGAIN_SECONDS: Final = 5.0  # before a shipper that ended is started again
_CALL_SECONDS: Final = 60.0
_ANSWER_SECONDS: Final = 5.0
_DRAIN_SECONDS: Final = 8.0  # at the end, for what nodes recorded a moment ago
_DRAIN_LOOK_SECONDS: Final = 0.2
_KNOCK_SECONDS: Final = 10.0  # for a connection


class Landing:
    """The actor on the node of the service. A segment is durable in the spool once `put` returns."""

    def __init__(self, home: str, identity: str) -> None:
        self._home, self._identity = Path(home), identity

    def identity(self) -> str:
        """Return the content of a file that is unique to this data directory."""
        return self._identity

    def put(self, name: str, content: Any) -> str | None:
        """Store a segment. Return the reason for a permanent refusal, or None. `content`: array of bytes."""
        from logprobe.monitor.shipped.landing import land  # noqa: PLC0415 - nodes have no use for it

        try:
            land(self._home, name, content.tobytes())
        except SegmentError as error:
            return str(error)
        return None

    def control(self, name: str, tag: str | None) -> tuple[bytes | None, str | None]:
        """Implement `Place.control`."""
        run = run_name(name)
        told = document(DirectiveFile(self._home, run), run) or nothing(run)
        now = hashlib.sha256(told).hexdigest()
        return (None, tag) if now == tag else (told, now)

    def note(self, node: str, content: bytes) -> None:
        """Implement `Place.note`."""
        from logprobe.monitor.shipped.nodes import FOLDER  # noqa: PLC0415 - likewise

        name = "".join(letter if letter.isalnum() or letter in "-_." else "_" for letter in node).lstrip(".")[:200]
        replace_file(self._home / FOLDER / f"{name}.json", content, mode=READABLE)


class RayPlace:
    """The `Place` of a landing, which is the actor named `name`."""

    def __init__(self, name: str) -> None:
        """Connect to the actor `name`. Raises `ValueError` if the actor does not exist."""
        import ray  # noqa: PLC0415 - optional, and heavy

        self._landing = ray.get_actor(name, namespace=NAMESPACE)

    def put(self, name: str, content: bytes) -> None:
        """Implement `Place.put`. Raises `SegmentError` for a permanent refusal."""
        import numpy as np  # noqa: PLC0415 - an array travels without being copied

        refused = self._asked(self._landing.put.remote(name, np.frombuffer(content, np.uint8)))
        if refused is not None:
            raise SegmentError("foreign", str(refused))

    def control(self, name: str, tag: str | None) -> tuple[bytes | None, str | None]:
        """Implement `Place.control`."""
        told, now = self._asked(self._landing.control.remote(name, tag))
        return told, now

    def note(self, node: str, content: bytes) -> None:
        """Implement `Place.note`."""
        self._asked(self._landing.note.remote(node, content))

    def identity(self) -> str:
        """Return `Landing.identity`. Raises `OSError`."""
        return str(self._asked(self._landing.identity.remote()))

    def _asked(self, reference: Any) -> Any:
        import ray  # noqa: PLC0415 - optional, and heavy

        try:
            return ray.get(reference, timeout=_CALL_SECONDS)
        except ray.exceptions.RayError as error:  # a timeout is one
            raise OSError(
                f"the node of the service does not answer ({_words(error)}); check the cluster with `ray status`"
            ) from None


class Carrier:
    """The actor of a node, which keeps a shipper running until the actor ends."""

    def __init__(self, folder: str, node: str, landing: str) -> None:
        """Start the shipping thread. `landing`: name of the actor on the node of the service."""
        self._folder = Path(folder.replace(NODE, node)).expanduser()
        self._landing = landing
        self._problem: str | None = None
        self._shipper: Shipper | None = None
        threading.Thread(target=self._keep, name="logprobe-carrier", daemon=True).start()

    def waiting(self) -> int:
        """Return the number of pending segments on the node."""
        return len(SpoolQueue(self._folder).waiting())

    def problem(self) -> str | None:
        """Return the reason why nothing is shipped now, or None."""
        shipper = self._shipper
        return self._problem if shipper is None else shipper.problem

    def _keep(self) -> None:
        pause = threading.Event()
        while True:
            try:
                self._folder.mkdir(parents=True, exist_ok=True)
                place = RayPlace(self._landing)
                if self._is_the_services(place):
                    return
                self._shipper = Shipper(self._folder, place, threading.Event())
                self._shipper.run()
            except (OSError, LogprobeError, ValueError, RuntimeError, MemoryError) as error:
                self._problem, self._shipper = _words(error), None
            pause.wait(_AGAIN_SECONDS)

    def _is_the_services(self, place: RayPlace) -> bool:
        """Return true if this folder is the service's data directory, locally or on a shared file system. Raises
        `OSError`.

        Shipping there would delete the segments that the landing has just written.
        """
        identity = place.identity()
        try:
            return (self._folder / _IDENTITY).read_text(encoding="ascii") == identity
        except FileNotFoundError:
            return False


class Fleet:
    """The actors of a cluster, managed from the node of the service."""

    def __init__(self, ray: Any, home: Path, folder: str) -> None:
        """Start the landing actor on this node. `folder`: recording folder of every node. Raises `OSError`."""
        self._ray, self._folder = ray, folder
        identity = secrets.token_hex(16)
        replace_file(home / _IDENTITY, identity.encode(), mode=READABLE)
        here = ray.get_runtime_context().get_node_id()
        self._name = f"landing-{identity}"
        self._landing = self._actor(Landing, here, 8, name=self._name, namespace=NAMESPACE).remote(str(home), identity)
        self._carriers: dict[str, Any] = {}
        self._asked: dict[str, Any] = {}  # node → what it was asked last and has not answered

    def look(self) -> list[str]:
        """Start an actor on every node without one. Return the nodes that have one."""
        alive = {node["NodeID"] for node in self._ray.nodes() if node["Alive"]}
        for node in alive - self._carriers.keys():
            self._carriers[node] = self._actor(Carrier, node, 2).remote(self._folder, node, self._name)
        for node in self._carriers.keys() - alive:
            del self._carriers[node]
            self._asked.pop(node, None)
        return sorted(alive)

    def problems(self) -> Counter[str]:
        """Return the number of nodes that ship nothing now, by reason."""
        for node, carrier in self._carriers.items():
            if node not in self._asked:  # one that does not answer is not asked again
                self._asked[node] = carrier.problem.remote()
        found = Counter[str]()
        if not self._asked:
            return found
        answered, _ = self._ray.wait(list(self._asked.values()), num_returns=len(self._asked), timeout=_ANSWER_SECONDS)
        for node, reference in list(self._asked.items()):
            problem: str | None = "no answer"
            if reference in answered:
                del self._asked[node]
                problem = self._answer(reference)
            if problem is not None:
                found[problem] += 1
        return found

    def _answer(self, reference: Any) -> str | None:
        try:
            problem: str | None = self._ray.get(reference)
        except self._ray.exceptions.RayError as error:
            return _words(error)
        return problem

    def drain(self) -> None:
        """Wait briefly until no node has a backlog."""
        deadline = time.monotonic() + _DRAIN_SECONDS
        while time.monotonic() < deadline:
            left = max(deadline - time.monotonic(), 0.1)
            if not any(self._ray.get([each.waiting.remote() for each in self._carriers.values()], timeout=left)):
                return
            time.sleep(_DRAIN_LOOK_SECONDS)

    def _actor(self, kind: type, node: str, at_once: int, **named: str) -> Any:
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy  # noqa: PLC0415 - optional, and heavy

        return self._ray.remote(kind).options(
            num_cpus=0,
            max_restarts=-1,
            max_concurrency=at_once,
            scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False),
            **named,
        )


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line. Return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m logprobe.app.processes.ray_shipping", description=__doc__)
    parser.add_argument("--home", required=True)
    parser.add_argument("--nodes", required=True, metavar="FOLDER", help="that nodes record to")
    parser.add_argument("--cluster", default="auto", help="address of the cluster (default: the one that runs here)")
    arguments = parser.parse_args(argv)
    log_to_stderr()
    try:
        apply_umask()
        _keep(Path(arguments.home), arguments.nodes, arguments.cluster)
    except (LogprobeError, OSError) as error:
        complain(str(error))
        return 1
    return 0


def _connected(address: str) -> Any:
    """Return Ray, connected to ``auto`` or to HOST:PORT.

    Raises `ConfigurationError` if no cluster is found, and `MissingExtraError` without Ray.
    """
    try:
        import ray  # noqa: PLC0415 - optional, and heavy
    except ImportError as error:
        raise MissingExtraError("a Ray cluster needs the package 'ray'; pip install 'logprobe[ray]'") from error
    host, _, port = address.rpartition(":")
    try:
        if port.isdigit() and "/" not in host:  # Ray itself tries for minutes
            socket.create_connection((host, int(port)), _KNOCK_SECONDS).close()
        ray.init(address=address, log_to_driver=False, logging_level="ERROR")
    except (OSError, RuntimeError, ValueError) as error:  # ConnectionError is an OSError
        raise ConfigurationError(
            f"--ray {address}: no connection ({_words(error)}); check the address and the cluster"
        ) from error
    return ray


def _words(error: Exception) -> str:
    """Return the first line of an error message of Ray."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {(lines or ['no message'])[0]}"[:300]


def _keep(home: Path, folder: str, cluster: str) -> None:
    """Keep actors on all nodes until SIGTERM or SIGINT. Raises `ConfigurationError` or `OSError`."""
    ray = _connected(cluster)
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):  # Ray has set handlers of its own
        # Not set here: the handler may run in the middle of a wait on the same lock.
        signal.signal(number, lambda *_: threading.Thread(target=stop.set).start())
    try:
        fleet, seen = Fleet(ray, home, folder), list[str]()
        before, said = set[str](), set[str]()
        while not stop.is_set():
            try:
                nodes, problems = fleet.look(), fleet.problems()
            except (RuntimeError, ValueError) as error:  # the cluster is gone
                raise ConfigurationError(
                    f"the Ray cluster failed ({_words(error)}); check it with `ray status`"
                ) from error
            if nodes != seen:
                complain(f"taking what the nodes of the Ray cluster ({len(nodes)}) record below {folder}")
                seen = nodes
            for words in (problems.keys() & before) - said:  # not of a moment only
                complain(f"{problems[words]} of {len(nodes)} nodes of the Ray cluster ship nothing now: {words}")
            said, before = problems.keys() & (said | before), set(problems)
            stop.wait(_LOOK_SECONDS)
        with suppress(Exception):  # a node that does not answer keeps what it has
            fleet.drain()
    finally:
        with suppress(Exception):  # the cluster may be gone
            ray.shutdown()


if __name__ == "__main__":
    sys.exit(main())
