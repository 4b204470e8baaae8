"""One relay per node of a Ray cluster: a detached actor bound to each node keeps a relay process running there.

Actors outlive the command and the driver that placed them. One that dies is started again by Ray on its node, its relay
with it; one whose node is lost ends, and what lay in that node's spool went with the node. Killed at any moment, a
relay loses nothing (see `collectors.relay`).
"""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from logprobe.app.processes.ray_cluster import connected, words
from logprobe.app.processes.supervisor import end, module, tethered
from logprobe.collectors.relay.autostart import LOG
from logprobe.collectors.shipping.queue import SpoolQueue

NAMESPACE: Final = "logprobe"
NODE: Final = "{node}"  # of a home: becomes Ray's id of the node
_PREFIX: Final = "relay-"
_AGAIN_SECONDS: Final = 5.0  # before a relay that ended is started again
_ANSWER_SECONDS: Final = 120.0  # a node may have to start a Python process first
_END_SECONDS: Final = 30.0


@dataclass(frozen=True, slots=True)
class Settings:
    """What every relay is started with. Paths are those of the node. `limit`: bytes per second, None: no limit."""

    home: str
    to: str
    token: str
    ca: str | None = None
    limit: float | None = None

    def command(self, home: Path) -> list[str]:
        """The relay's arguments on a node."""
        optional = {"--ca": self.ca, "--limit": None if self.limit is None else str(self.limit)}
        given = [text for name, value in optional.items() if value is not None for text in (name, value)]
        return ["--home", str(home), "--to", self.to, "--token", self.token, *given]


@dataclass(frozen=True, slots=True)
class NodeState:
    """A node's relay. `segments`: waiting in the spool, None: not known; `problem`: the last words of a relay that does
    not run."""

    node: str
    home: str = ""
    pid: int | None = None
    segments: int | None = None
    problem: str | None = None

    def document(self) -> dict[str, object]:
        """JSON-ready form."""
        return asdict(self)


class NodeRelay:
    """The actor: keeps a relay running on its node until it is told to end."""

    def __init__(self, settings: Settings, node: str) -> None:
        self._settings, self._node = settings, node
        self._home = Path(settings.home.replace(NODE, node)).expanduser()
        self._stop, self._begun = threading.Event(), threading.Event()
        self._process: subprocess.Popen[bytes] | None = None
        self._problem: str | None = None
        # The kernel ends the relay together with the thread that started it: it has to be one that lasts.
        self._thread = threading.Thread(target=self._keep, name="logprobe-relay", daemon=True)
        self._thread.start()

    def settings(self) -> Settings:
        """What its relay is started with."""
        return self._settings

    def state(self) -> NodeState:
        """As of now, or once it was started for the first time."""
        self._begun.wait(_END_SECONDS)
        process = self._process
        running = process is not None and process.poll() is None
        pid = process.pid if process is not None and running else None
        return NodeState(self._node, str(self._home), pid, self._waiting(), None if running else self._problem)

    def end(self, seconds: float) -> NodeState:
        """Ends the relay once all is acknowledged, or after `seconds`."""
        self._stop.set()
        self._end(self._process)
        self._thread.join(_END_SECONDS)
        self._end(self._process)  # one that was started meanwhile
        if seconds > 0 and self._waiting():
            self._ended(self._start("--drain"), seconds)
        return NodeState(self._node, str(self._home), None, self._waiting())

    def _keep(self) -> None:
        while not self._stop.is_set():
            try:
                self._home.mkdir(parents=True, exist_ok=True)
                self._process = self._start()
                self._begun.set()
                self._process.wait()
                self._problem = self._last_words()
            except OSError as error:
                self._problem = f"{self._home}: {error.strerror}"
                self._begun.set()
            self._stop.wait(_AGAIN_SECONDS)

    def _start(self, *more: str) -> subprocess.Popen[bytes]:
        command = tethered(module("logprobe.collectors.relay", *self._settings.command(self._home), *more))
        with (self._home / LOG).open("ab") as log:
            return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)  # noqa: S603 - our own command

    def _ended(self, process: subprocess.Popen[bytes], seconds: float) -> None:
        try:
            process.wait(seconds)
        except subprocess.TimeoutExpired:
            self._end(process)

    def _end(self, process: subprocess.Popen[bytes] | None) -> None:
        if process is not None and process.poll() is None:
            end(process, _END_SECONDS)

    def _waiting(self) -> int | None:
        try:
            return len(SpoolQueue(self._home).waiting())
        except OSError:
            return None

    def _last_words(self) -> str:
        lines = (self._home / LOG).read_text(errors="replace").splitlines()
        return lines[-1][-400:] if lines else "the relay ended; its log is empty"


class Relays:
    """The relays of a cluster, from one of its nodes."""

    def __init__(self, ray: Any) -> None:
        """`ray`: the module, connected."""
        self._ray = ray

    def up(self, settings: Settings) -> list[NodeState]:
        """Places a relay on every node without one, and replaces those with other settings; → all of them."""
        actors = {node: self._placed(settings, node) for node in self._nodes()}
        return [self._answer(node, actor.state.remote()) for node, actor in actors.items()]

    def down(self, seconds: float) -> list[NodeState]:
        """Ends all relays, each once all is acknowledged or after `seconds`, and their actors."""
        alive, states = set(self._nodes()), []
        actors = {node: self._actor(node) for node in self._nodes_with_actor()}
        ending = {
            node: actor.end.remote(seconds) for node, actor in actors.items() if actor is not None and node in alive
        }
        for node, actor in actors.items():
            if node in ending:
                states.append(self._answer(node, ending[node], seconds + 2 * _END_SECONDS))
            if actor is not None:
                self._ray.kill(actor)
        return states

    def _placed(self, settings: Settings, node: str) -> Any:
        actor = self._actor(node)
        if actor is not None:
            with suppress(self._ray.exceptions.RayError):  # dead, and not yet taken out of the list
                if self._ray.get(actor.settings.remote(), timeout=_ANSWER_SECONDS) == settings:
                    return actor
                self._ray.get(actor.end.remote(0), timeout=_ANSWER_SECONDS)
            self._ray.kill(actor)
        return self._made(settings, node)

    def _made(self, settings: Settings, node: str) -> Any:
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy  # noqa: PLC0415 - optional, and heavy

        remote = self._ray.remote(NodeRelay).options(
            name=_PREFIX + node,
            namespace=NAMESPACE,
            lifetime="detached",
            get_if_exists=True,
            num_cpus=0,
            max_restarts=-1,
            scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False),
        )
        return remote.remote(settings, node)

    def _answer(self, node: str, reference: Any, seconds: float = _ANSWER_SECONDS) -> NodeState:
        try:
            state: NodeState = self._ray.get(reference, timeout=seconds)
        except self._ray.exceptions.RayError as error:
            return NodeState(node, problem=words(error))
        return state

    def _nodes(self) -> list[str]:
        return sorted(node["NodeID"] for node in self._ray.nodes() if node["Alive"])

    def _nodes_with_actor(self) -> Iterator[str]:
        """Nodes that have, or had, an actor."""
        listed: Sequence[Mapping[str, str]] = self._ray.util.list_named_actors(all_namespaces=True)
        for actor in listed:
            if actor["namespace"] == NAMESPACE and actor["name"].startswith(_PREFIX):
                yield actor["name"].removeprefix(_PREFIX)

    def _actor(self, node: str) -> Any:
        try:
            return self._ray.get_actor(_PREFIX + node, namespace=NAMESPACE)
        except ValueError:
            return None


@contextmanager
def relays(address: str) -> Iterator[Relays]:
    """The relays of the cluster at `address`. Raises `ConfigurationError` when there is none."""
    ray, ours = connected(address)
    try:
        yield Relays(ray)
    finally:
        if ours:
            ray.shutdown()
