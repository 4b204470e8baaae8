"""Reads over TLS (`up --reader-port`): the same answers as without, and what readers and strangers are told when they are refused."""

from __future__ import annotations

import json
import re
import shutil
import socket
import ssl
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pytest
from processes import connected, eventually, logprobe, record, service
from pyarrow import flight
from relay_processes import Process, handshake, port_of, prepare, receiver

from logprobe.app import cli
from logprobe.app.dashboard.access.settings import Access
from logprobe.app.dashboard.data import other_places
from logprobe.collectors.errors import ConfigurationError, QueryError, ServiceUnavailableError
from logprobe.monitor.elsewhere import RemoteReader, RemoteService, checked
from logprobe.monitor.home import Home
from logprobe.monitor.reader import FlightReader
from logprobe.monitor.relay import certificate
from logprobe.monitor.relay.files import RelayFiles
from logprobe.monitor.relay.scopes import STATEMENTS
from logprobe.monitor.store.sql_files import statement

TOKEN = "0123456789abcdef0123456789abcdef"
RUN = "toy"


@dataclass
class Served:
    """A home, its service, and the process that answers readers."""

    home: Path
    port: int
    process: Process
    environment: dict[str, str] = field(default_factory=lambda: {"LOGPROBE_TOKEN": TOKEN})

    @property
    def ca(self) -> Path:
        return RelayFiles.of(Home(self.home)).authority

    def reader(
        self, host: str = "localhost", *, scheme: str = "grpc+tls", port: int = 0, **given: Path
    ) -> RemoteReader:
        address = f"{scheme}://{host}:{port or self.port}"
        return RemoteReader(RemoteService(address, self.environment, **{"ca": self.ca, **given}))

    def raw(self, token: str | None) -> tuple[flight.FlightClient, flight.FlightCallOptions]:
        """A client of Flight's own, for what our reader would never ask."""
        shown = [] if token is None else [(b"authorization", f"Bearer {token}".encode())]
        client = flight.FlightClient(f"grpc+tls://localhost:{self.port}", tls_root_certs=self.ca.read_bytes())
        return client, flight.FlightCallOptions(timeout=120, headers=shown)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    home = tmp_path_factory.mktemp("readers") / "home"
    record(home, RUN)
    certificate.make(RelayFiles.of(Home(home)).create(), ["localhost"], 30, datetime.now(UTC))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LOGPROBE_TOKEN", TOKEN)
        with service(home) as reader:
            reader.ingest()
            process = receiver(home, 0, "--readers").start()
            try:
                yield Served(home, port_of(process), process)
            finally:
                process.end()


def test_runs_are_listed_and_compared(
    served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("LOGPROBE_TOKEN", TOKEN)
    ours, where = tmp_path / "home", f"grpc+tls://localhost:{served.port}"
    record(ours, "mine")
    assert cli.main(["ingest", "--once", "--home", str(ours)]) == 0
    capsys.readouterr()
    ca = ["--ca", str(served.ca)]
    assert cli.main(["runs", "--home", str(ours), "--also", where, *ca, "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert [(line["run"], line["where"], line["steps"]) for line in listed] == [
        ("mine", str(ours), 3),
        (RUN, where, 3),
    ]
    monkeypatch.setenv("LOGPROBE_SERVICE", f"grpc+tls://localhost:1,ca={served.ca}")  # as --ca
    assert cli.main(["compare", f"{where}/{RUN}", "--baseline", "mine", "--home", str(ours), "--json"]) == 0
    (run,) = json.loads(capsys.readouterr().out)["runs"]
    assert (run["run"], run["common"]) == (f"{where}/{RUN}", 3)


def test_the_dashboard_trusts_the_authority_that_up_was_given(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOGPROBE_TOKEN", TOKEN)
    where = f"grpc+tls://localhost:{served.port}"
    for ca in (None, str(served.ca)):
        for name, value in Access(also=(where,), ca=ca).environment().items():
            monkeypatch.setenv(name, value)
        other_places._source.cache_clear()
        if ca is None:
            with pytest.raises(ServiceUnavailableError, match="is not signed by a known authority"):
                other_places.read_place(where)
        else:
            assert RUN in other_places.read_place(where)[0]["run"].to_pylist()
    other_places._source.cache_clear()


def test_every_answer_is_that_of_the_service(served: Served) -> None:
    with served.reader() as reader, FlightReader(Home(served.home)) as here:
        rows = "SELECT range AS n, repeat('x', 100) AS x FROM range(200000)"  # many messages
        assert reader.query(rows).equals(here.query(rows))
        assert reader.read("app_runs")["run"].to_pylist() == [RUN]
        assert reader.status()["pid"] == here.status()["pid"]
        with pytest.raises(QueryError) as refused:
            reader.query("DELETE FROM steps")
        with pytest.raises(QueryError) as refused_here:
            here.query("DELETE FROM steps")
        assert str(refused.value) == str(refused_here.value)


def test_what_is_wrong_is_said(served: Served, tmp_path: Path) -> None:
    stranger = tmp_path / "home"
    prepare(stranger)
    other = RelayFiles.of(Home(stranger)).authority
    (garbage := tmp_path / "garbage.pem").write_text("no certificate")
    info = Home(served.home).service_info()
    assert info is not None
    said = {
        "is not signed by an authority in": served.reader(ca=other),
        "garbage.pem holds no certificate": served.reader(ca=garbage),
        "is not for '127.0.0.1'; there: logprobe certificate --host 127.0.0.1": served.reader("127.0.0.1"),
        "no TLS 1.2 or newer is spoken there": served.reader("127.0.0.1", port=info.port),
        f"it listens with TLS; write grpc+tls://localhost:{served.port}": served.reader(scheme="grpc"),
        "check its address and LOGPROBE_TOKEN": served.reader(port=9),
    }
    for words, reader in said.items():
        with reader, pytest.raises(ServiceUnavailableError, match=words.replace("+", r"\+")):
            reader.read("app_runs")
    wrong = replace(served, environment={"LOGPROBE_TOKEN": TOKEN[::-1]})
    with (
        wrong.reader() as reader,
        pytest.raises(ServiceUnavailableError, match="refuses the token; set LOGPROBE_TOKEN"),
    ):
        reader.read("app_runs")
    with pytest.raises(ConfigurationError, match="cannot be read"):
        checked([f"grpc+tls://localhost:{served.port}"], None, tmp_path / "missing.pem")


def test_up_asks_for_what_is_missing(tmp_path: Path) -> None:
    up = ("up", "--no-app", "--reader-port", "0", "--home", tmp_path / "home")
    assert "make one: logprobe certificate" in logprobe(*up, code=1, LOGPROBE_TOKEN=TOKEN).stderr
    prepare(tmp_path / "home")
    assert "set LOGPROBE_TOKEN here and there" in logprobe(*up, code=1, LOGPROBE_TOKEN="").stderr
    assert "fewer than 16 characters" in logprobe(*up, code=1, LOGPROBE_TOKEN="short").stderr


REFUSED = {  # who, what and why, as the audit says it
    ("nobody known", "call", "missing or wrong"),
    ("nobody known", "connection", "no TLS 1.2 or newer"),
    ("a reader", "call", "DO_PUT"),
    ("a reader", "action", "shutdown"),
}


def _put_nothing(client: flight.FlightClient, options: flight.FlightCallOptions) -> None:
    """An upload that ends at once: the refusal comes with its end, or with its opening if that is slower."""
    writer, _ = client.do_put(flight.FlightDescriptor.for_path("segments"), pa.schema([]), options)
    writer.close()


def test_strangers_and_curious_readers_get_nothing_and_are_audited(served: Served) -> None:
    ticket = flight.Ticket(json.dumps({"name": "app_runs"}).encode())
    for token in (None, "", TOKEN[::-1], TOKEN[:-1], f"{TOKEN}x"):
        client, options = served.raw(token)
        with client:
            for call in (
                lambda client=client, options=options: client.do_get(ticket, options).read_all(),
                lambda client=client, options=options: list(client.do_action("status", options)),
                lambda client=client, options=options: list(client.list_flights(b"", options)),
            ):
                with pytest.raises(flight.FlightUnauthenticatedError):
                    call()
    client, options = served.raw(TOKEN)
    with client:
        assert client.do_get(ticket, options).read_all()["run"].to_pylist() == [RUN]
        for action in ("shutdown", "ingest", "stop_query", "alerts.acknowledge", "relay.note"):
            with pytest.raises(flight.FlightUnauthorizedError):
                list(client.do_action(flight.Action(action, b"{}"), options))
        with pytest.raises(flight.FlightUnauthorizedError):
            _put_nothing(client, options)
        for forged in (b"", b"[]", b"\xff", json.dumps({"sql": "SELECT 1", "name": "app_runs"}).encode()):
            with pytest.raises(flight.FlightError, match="request"):
                client.do_get(flight.Ticket(forged), options).read_all()
    for version in (ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1):
        assert handshake(served.port, version) is None
    assert handshake(served.port, ssl.TLSVersion.TLSv1_2) == "TLSv1.2"
    with socket.create_connection(("127.0.0.1", served.port), timeout=60) as plain:
        plain.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
        with suppress(OSError):
            assert b"SETTINGS" not in plain.recv(1000)
    with connected(served.home) as reader:
        audit = "SELECT author, action, words FROM alert_audit WHERE subject = 'reader'"

        def missing() -> set[tuple[str, str, str]]:
            rows = reader.query(audit).to_pylist()
            return {
                (who, what, why)
                for who, what, why in REFUSED
                if not any(
                    row["author"].startswith(f"{who} at ")
                    and row["action"] == f"was refused: {what}"
                    and why in row["words"]
                    for row in rows
                )
            }

        eventually(lambda: not missing(), "every refusal is in the audit")


def test_a_new_certificate_and_another_authority_need_no_restart(served: Served, tmp_path: Path) -> None:
    """The last one: it replaces the authority that the others trust."""
    place, process = RelayFiles.of(Home(served.home)), served.process.process
    assert process is not None
    trusted = Path(shutil.copy(served.ca, tmp_path / "trusted.pem"))
    with served.reader(ca=trusted) as reader:
        assert reader.read("app_runs").num_rows == 1
        certificate.make(place, ["localhost"], 30, datetime.now(UTC))
        eventually(lambda: "listening again" in served.process.words, "the renewed certificate is taken over")
        eventually(lambda: _answers(reader), "the same authority signed it: the reader goes on")
        place.authority.unlink()
        certificate.make(place, ["localhost"], 30, datetime.now(UTC))
        eventually(lambda: "not signed by an authority" in _problem(reader), "another authority's is refused")
        trusted.write_bytes(trusted.read_bytes() + place.authority.read_bytes())  # both, as one would
        eventually(lambda: _answers(reader), "the file of authorities is read again")
    assert process.poll() is None


def _problem(reader: RemoteReader) -> str:
    try:
        reader.read("app_runs")
    except ServiceUnavailableError as error:
        return str(error)
    return ""


def _answers(reader: RemoteReader) -> bool:
    return not _problem(reader)


SECRET_RUN = "other/hidden"


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A home of two teams, read with a token of one of them, without a token for everything."""
    home = tmp_path_factory.mktemp("scoped") / "home"
    for run in ("toy/1", SECRET_RUN):
        record(home, run)
    certificate.make(RelayFiles.of(Home(home)).create(), ["localhost"], 30, datetime.now(UTC))
    text = logprobe("reader-token", "toys", "--run", "toy/*", "--home", home).stdout.strip()
    with service(home) as reader:
        reader.ingest()
        process = receiver(home, 0, "--readers").start()
        try:
            yield Served(home, port_of(process), process, {"LOGPROBE_TOKEN": text})
        finally:
            process.end()


def test_a_token_of_some_runs_lists_and_compares_these_and_no_other_is_named(shared: Served, tmp_path: Path) -> None:
    where = f"grpc+tls://localhost:{shared.port}"
    given = {**shared.environment, "LOGPROBE_SERVICE": f"{where},ca={shared.ca}"}
    ours = tmp_path / "home"
    record(ours, "mine")
    logprobe("ingest", "--once", "--home", ours)
    listed = json.loads(logprobe("runs", "--home", ours, "--also", where, "--json", **given).stdout)
    assert [line["run"] for line in listed] == ["mine", "toy/1"]
    assert listed[1]["k3"] is not None
    compared = logprobe("compare", f"{where}/toy/1", "--baseline", "mine", "--home", ours, "--json", **given)
    assert json.loads(compared.stdout)["runs"][0]["common"] == 3
    no_such = logprobe("compare", f"{where}/{SECRET_RUN}x", "--baseline", "mine", "--home", ours, code=1, **given)
    hidden = logprobe("compare", f"{where}/{SECRET_RUN}", "--baseline", "mine", "--home", ours, code=1, **given)
    assert hidden.stderr.replace(SECRET_RUN, "") == no_such.stderr.replace(f"{SECRET_RUN}x", "")


@pytest.mark.parametrize("name", sorted(STATEMENTS))
def test_no_answer_tells_a_run_that_is_hidden_from_one_that_does_not_exist(shared: Served, name: str) -> None:
    wanted = set(re.findall(r"\$([a-z_]+)", statement(name)))

    def answer(reader: FlightReader, run: str) -> pa.Table:
        spans = {"first": [0, 0], "last": [9, 9]}
        params = {"run": run, "runs": ["toy/1", run], "since": -1, "metrics": ["backend.k3_kl"], **spans}
        return reader.read(name, **{key: value for key, value in params.items() if key in wanted})

    with shared.reader() as reader, FlightReader(Home(shared.home)) as everything:
        hidden = answer(reader, SECRET_RUN)
        assert hidden.equals(answer(reader, "no/such"))
        assert SECRET_RUN not in str(hidden.to_pylist())
        if name in {"app_runs", "app_steps", "app_points", "app_runs_glance", "growth_values"}:
            assert answer(everything, SECRET_RUN).num_rows > answer(reader, SECRET_RUN).num_rows, "it is there"


def test_the_first_thing_past_what_such_a_token_reads_is_refused_and_audited(shared: Served) -> None:
    with shared.reader() as reader:
        assert reader.status() == {"running": True}, "a backlog names runs"
        refused: list[Callable[[], object]] = [
            lambda: reader.query("SELECT DISTINCT run FROM sequences"),
            lambda: reader.read("alert_audit", run=None, count=10),
            lambda: reader.read("export_tokens", run="toy/1", step=0),
            lambda: reader.read("app_steps", run="toy/1", since=-1, RUN=SECRET_RUN),
        ]
        for ask in refused:
            with pytest.raises(QueryError, match=r"this token|no parameter") as said:
                ask()
            assert SECRET_RUN not in str(said.value)
    with FlightReader(Home(shared.home)) as here:
        eventually(
            lambda: (
                here.query(
                    "SELECT * FROM alert_audit WHERE subject = 'reader' AND starts_with(author, 'toys')"
                ).num_rows
            ),
            "the audit says who was refused",
            60,
        )


def test_a_token_that_was_revoked_reads_nothing_any_more(shared: Served) -> None:
    text = logprobe("reader-token", "guests", "--run", "*", "--home", shared.home).stdout.strip()
    guest = replace(shared, environment={"LOGPROBE_TOKEN": text})
    with guest.reader() as reader:
        assert set(reader.read("app_runs")["run"].to_pylist()) == {"toy/1", SECRET_RUN}
        logprobe("reader-token", "guests", "--revoke", "--home", shared.home)
        with pytest.raises(ServiceUnavailableError, match="refuses the token"):
            reader.read("app_runs")
    assert [each["name"] for each in json.loads(logprobe("reader-token", "--json", "--home", shared.home).stdout)] == [
        "toys"
    ]
