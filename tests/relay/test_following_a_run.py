"""Relays follow their runs through a fleet: after a move, after a takeover, and over kills, nobody gives them an address."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from processes import eventually, logprobe, record
from relay_processes import Process, port_of, receiver, relay, waiting
from store_work import bring_in

from logprobe.collectors.directives import DirectiveFile
from logprobe.collectors.relay.routes import Routes
from logprobe.collectors.switch import CorrectionSwitch
from logprobe.collectors.versions import Mark, MarkFile
from logprobe.monitor.fleet.forwarding import Forwarder
from logprobe.monitor.fleet.table import Fleet, Row
from logprobe.monitor.home import Home
from logprobe.monitor.relay.files import RelayFiles
from logprobe.monitor.store.store import Store

RUN = "team/ü 1"
NAMES = ("a", "b", "c")
PATIENCE = 300.0


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return int(listening.getsockname()[1])


class Services:
    """Homes of a fleet, each with a process that receives; what they store is brought in by hand."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.homes = {name: folder / name / "home" for name in NAMES}
        self.ports = {name: free_port() for name in NAMES}
        listed = {
            name: {"home": str(home), "address": f"grpc+tls://localhost:{self.ports[name]}"}
            for name, home in self.homes.items()
        }
        (folder / "fleet.yaml").write_text(json.dumps({"services": listed}))
        for home in self.homes.values():
            Store.open(Home(home).create()).close()
            logprobe("certificate", "--host", "localhost", "--home", home)
        self.ca = folder / "ca.pem"
        self.ca.write_bytes(b"".join(RelayFiles.of(Home(home)).authority.read_bytes() for home in self.homes.values()))
        self.token = folder / "token"
        self.token.write_text(logprobe("relay-token", "team", "--run", "team/*", "--fleet", folder).stdout)
        self.token.chmod(0o600)
        self.fleet = Fleet(folder)
        self.receivers = {name: receiver(home, self.ports[name]) for name, home in self.homes.items()}
        for each in self.receivers.values():
            each.environment["LOGPROBE_FLEET"] = str(folder)
            each.start()
        for each in self.receivers.values():
            port_of(each)

    def relay(self, node: Path) -> Process:
        made = relay(node, self.ports["a"], self.homes["a"], self.token)
        made.command[made.command.index("--ca") + 1] = str(self.ca)
        return made.start()

    def address(self, name: str) -> str:
        return str(self.fleet.services[name].address)

    def told(self, node: Path) -> object:
        """Where the node knows its runs to be, if not at its own service."""
        known = node / "fleet.json"
        return json.loads(known.read_text())["runs"] if known.exists() else None

    def arrived(self, name: str) -> list[Path]:
        return waiting(self.homes[name])

    def bring_in(self, name: str) -> None:
        with Store.open(Home(self.homes[name])) as store:
            Forwarder(store).run_once()
            bring_in(store)

    def samples(self, name: str) -> list[str]:
        with Store.open(Home(self.homes[name])) as store:
            return store.query("SELECT sample_id FROM training_sequences ORDER BY ALL")["sample_id"].to_pylist()


@pytest.fixture
def services(tmp_path: Path) -> Iterator[Services]:
    made = Services(tmp_path)
    yield made
    for each in made.receivers.values():
        each.end()


@pytest.mark.timeout(1800)
def test_a_relay_follows_its_run_over_moves_and_kills(services: Services, tmp_path: Path) -> None:
    node, steps = tmp_path / "node", iter(range(100))

    def recorded() -> None:
        step = next(steps)
        record(node, RUN, steps=range(step, step + 1))

    def sent() -> None:
        """A further step is acknowledged by whoever takes it."""
        recorded()
        eventually(lambda: not waiting(node), "sent", PATIENCE)

    def sent_to(name: str) -> None:
        """A further step arrives there, and nowhere else."""
        before = {each: services.arrived(each) for each in NAMES}
        sent()
        assert {each for each in NAMES if services.arrived(each) != before[each]} == {name}

    relaying = services.relay(node)
    files = f"ca={services.ca},token={services.token}"
    switch = CorrectionSwitch(f"{services.address('a')},{files}", RUN, poll_seconds=0.2)
    try:
        sent_to("a")
        services.bring_in("a")
        services.fleet.move(RUN, "b", "ada")
        eventually(lambda: services.told(node) == {RUN: services.address("b")}, "the node is told", PATIENCE)
        sent()  # perhaps to the old one, which forwards it
        services.receivers["a"].kill()
        sent()
        sent_to("b")
        relaying.kill()
        recorded()
        relaying.start()  # while its own service is away: it knows the others
        sent_to("b")
        services.receivers["b"].kill()
        for name in ("a", "b"):
            services.bring_in(name)
        services.fleet.move(RUN, "c", "ada")
        sent()
        sent_to("c")

        MarkFile(services.homes["c"], RUN).append(Mark("7", 1.0))
        stop, stopped = (DirectiveFile(home, RUN).stop_path for home in (services.homes["c"], node))
        stop.parent.mkdir(exist_ok=True)
        stop.write_text("")
        eventually(stopped.exists, "the kill switch arrives", PATIENCE)
        eventually(lambda: switch._watch.directives.stopped, "also at a trainer that asks by itself", PATIENCE)
        eventually(MarkFile(node, RUN).path.exists, "a mark arrives", PATIENCE)
        stop.unlink()
        eventually(lambda: not stopped.exists(), "it is taken back", PATIENCE)
        eventually(lambda: not switch._watch.directives.stopped, "at the trainer, too", PATIENCE)

        services.receivers["a"].start()
        services.fleet.move(RUN, "a", "ada")
        eventually(lambda: services.told(node) == {}, "the node is told that its own service has it again", PATIENCE)
        sent_to("a")
    finally:
        switch.close()
        relaying.end()
    for name in ("b", "c", "a"):
        services.bring_in(name)
    assert (services.samples("b"), services.samples("c")) == ([], [])
    assert services.samples("a") == sorted(f"s{step}-{i}" for step in range(next(steps)) for i in range(4)), "once each"


@pytest.mark.timeout(600)
def test_a_run_that_the_table_gives_to_another_service_gets_no_second_home(services: Services, tmp_path: Path) -> None:
    node = tmp_path / "node"
    with services.fleet.changing() as rows:
        rows[RUN] = Row("b", "now")
    record(node, RUN, steps=range(1))
    relaying = services.relay(node)
    try:
        eventually(lambda: services.arrived("b") and not waiting(node), "it went there", PATIENCE)
        assert services.arrived("a") == []
    finally:
        relaying.end()


OWN, B, C = (f"grpc+tls://{name}:7070" for name in "abc")


def test_a_service_counts_once_it_has_answered_and_while_it_does(tmp_path: Path) -> None:
    routes = Routes(tmp_path, OWN)
    assert (routes.of("r"), routes.asks(OWN, "r"), routes.others()) == (OWN, True, [])
    routes.take({"fleet": {"services": [OWN, B, C], "runs": {"r": B}}}, OWN)
    assert (routes.of("r"), routes.asks(OWN, "r"), routes.asks(B, "r")) == (OWN, True, True), "it is only said"
    routes.answered(B, ["r"], ["r"])
    assert (routes.of("r"), routes.asks(OWN, "r"), routes.elsewhere()) == (B, False, {B})
    routes.failed(B)
    assert (routes.of("r"), routes.asks(OWN, "r")) == (OWN, False), (
        "segments are forwarded, old directives are not followed"
    )
    routes.answered(B, ["r"], ["r"])
    routes.denied("r", B)
    assert (routes.of("r"), routes.asks(OWN, "r")) == (OWN, True), "its token does not count there"
    assert Routes(tmp_path, OWN).said("r") == B, "a relay that starts again knows it"
    assert Routes(tmp_path, C).said("r") == C, "one that was given another service does not"
    routes.take({"fleet": {"services": [OWN, B, C], "runs": {"r": None}}}, C)
    assert routes.said("r") == C
    routes.take({"fleet": {"services": [OWN, B, C], "runs": {"r": None}}}, OWN)
    assert (routes.said("r"), routes.elsewhere()) == (OWN, set())


@pytest.mark.parametrize(
    "said",
    [
        None,
        [],
        {"services": 7, "runs": []},
        {"services": ["grpc://b:1", "b", 7], "runs": {"r": "grpc://b:1"}},
        {"runs": {"r": 7}},
        {"runs": {"r": "grpc+tls://b"}},
    ],
)
def test_what_is_no_address_with_tls_is_not_followed(tmp_path: Path, said: object) -> None:
    routes = Routes(tmp_path, OWN)
    routes.take({"fleet": said}, OWN)
    assert (routes.said("r"), routes.others()) == (OWN, [])
    (tmp_path / "fleet.json").write_text(json.dumps({"own": OWN, **said} if isinstance(said, dict) else said))
    assert Routes(tmp_path, OWN).said("r") == OWN


def test_more_runs_than_are_remembered_are_asked_about_again(tmp_path: Path) -> None:
    routes = Routes(tmp_path, OWN)
    routes.take({"fleet": {"services": [B], "runs": {f"r{number}": B for number in range(10_001)}}}, OWN)
    assert (routes.said("r0"), routes.said("r1"), routes.said("r10000")) == (OWN, B, B)
    routes.take({"fleet": {"services": [B], "runs": {"r0": B}}}, OWN)
    assert routes.said("r0") == B
