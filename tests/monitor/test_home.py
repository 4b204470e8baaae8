"""A home has one owner at a time, and says who."""

from __future__ import annotations

import os
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from faultfs.faultfs import FaultyDisk

from logprobe.collectors.errors import ConfigurationError, HomeBusyError, ServiceUnavailableError
from logprobe.monitor.home import Home, ServiceInfo
from logprobe.monitor.reader import FlightReader

INFO = ServiceInfo(host="127.0.0.1", port=4711, token="secret", pid=1, started="2026-01-01T00:00:00+00:00")


def test_a_second_owner_is_refused_and_told_who_the_first_is(home: Path):
    with Home(home).lock() as lock:
        lock.announce("127.0.0.1:4711")
        with pytest.raises(HomeBusyError, match=rf"process {os.getpid()} on {socket.gethostname()}.*127\.0\.0\.1:4711"):
            Home(home).lock()


def test_a_released_home_can_be_taken_again(home: Path):
    Home(home).lock().release()
    with Home(home).lock():
        assert Home(home).owner() is not None
    assert Home(home).owner() is None


def test_a_killed_owner_holds_nothing(home: Path):
    code = f"import time; from logprobe.monitor.home import Home; h = Home({str(home)!r}).lock(); print('held', flush=True); time.sleep(600)"
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        owner = Home(home).owner()
        assert owner is not None
        assert owner.pid == process.pid
        with pytest.raises(HomeBusyError, match=f"process {process.pid} "):
            Home(home).lock()
    finally:
        process.send_signal(signal.SIGKILL)
        process.communicate()
    assert Home(home).owner() is None
    with Home(home).lock():
        owner = Home(home).owner()
        assert owner is not None
        assert owner.pid == os.getpid()


def test_looking_for_the_owner_does_not_disturb_it(home: Path):
    with Home(home).lock():
        for _ in range(3):
            assert Home(home).owner() is not None


def test_service_info_round_trip_is_for_the_user_only(home: Path):
    place = Home(home).create()
    place.write_service_info(INFO)
    assert place.service_info() == INFO
    assert INFO.address == "127.0.0.1:4711"
    assert stat.S_IMODE(place.service_file.stat().st_mode) == 0o600
    place.remove_service_info()
    assert place.service_info() is None
    place.remove_service_info()


@pytest.mark.parametrize("content", ["", "{}", "[1]", '{"host": 1'])
def test_a_damaged_service_file_is_no_service(home: Path, content: str):
    place = Home(home).create()
    place.service_file.write_text(content)
    assert place.service_info() is None


def test_a_file_is_no_home(tmp_path: Path):
    (tmp_path / "file").touch()
    with pytest.raises(ConfigurationError, match="not a folder"):
        Home(tmp_path / "file")
    with pytest.raises(ConfigurationError, match="choose another"):
        Home(tmp_path / "what?" / "home")
    with pytest.raises(ConfigurationError, match="choose another"):
        Home(tmp_path / "C:\\runs" / "home")
    with pytest.raises(ConfigurationError, match="empty path"):
        Home("")


def test_a_home_below_a_file_cannot_be_created(tmp_path: Path):
    (tmp_path / "file").touch()
    with pytest.raises(ConfigurationError, match="choose another"):
        Home(tmp_path / "file" / "home").create()


def test_constructing_a_home_creates_nothing(home: Path):
    Home(home)
    assert not home.exists()


def test_a_new_home_survives_a_power_cut(tmp_path: Path) -> None:
    """Each folder's name is made durable in the folder above: else all that is flushed into it goes with it."""
    disk = FaultyDisk(tmp_path / "rules")
    home = tmp_path / "above" / "home"
    rules = [disk.rule("fsync", within=folder, only="directories", delay=1e-6) for folder in (home, home.parent)]
    program = "import sys; from logprobe.monitor.home import Home; Home(sys.argv[1]).create()"
    subprocess.run([sys.executable, "-c", program, str(home)], env=disk.environment(), check=True, timeout=120)
    # spool, raw and quarantine in the home; the home, by the folder above it.
    assert [rule.injected for rule in rules] == [3, 1]


@pytest.fixture
def shown_home(tmp_path: Path) -> Iterator[Path]:
    """A home that everybody can list, whatever the temporary folder allows."""
    if os.geteuid() != 0:
        pytest.skip("only root can act as another user")
    with TemporaryDirectory() as folder:
        home = Path(folder) / "home"
        Home(home).create()
        for path in (Path(folder), home):
            path.chmod(0o755)
        yield home


def as_another_user(work: Callable[[], object]) -> str:
    """What `work` says as an error when another user does it."""
    reading, writing = os.pipe()
    if (child := os.fork()) == 0:
        said = "nothing"
        try:
            os.setgid(65534)
            os.setuid(65534)
            work()
        except Exception as error:
            said = f"{type(error).__name__}: {error}"
        finally:
            os.write(writing, said.encode())
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        said = pipe.read()
    os.waitpid(child, 0)
    return said


def test_another_users_home_is_refused_in_a_sentence(shown_home: Path):
    Home(shown_home).lock().release()
    assert as_another_user(lambda: Home(shown_home).lock()).startswith(
        f"HomeBusyError: {shown_home} belongs to another user ("
    )


def test_a_service_that_begins_is_no_other_users(home: Path):
    with Home(home).lock(), pytest.raises(ServiceUnavailableError, match="no service is running"):
        FlightReader(Home(home)).status()


def test_another_users_service_is_not_said_to_be_absent(shown_home: Path):
    home = Home(shown_home)
    with home.lock() as lock:
        lock.announce("127.0.0.1:4711")
        home.write_service_info(INFO)
        said = as_another_user(lambda: FlightReader(Home(shown_home)).status())
    assert said == (
        f"ServiceUnavailableError: a service of another user is running for {shown_home}; run this as that user"
    )
