"""A home has one owner at a time, and says who."""

from __future__ import annotations

import os
import signal
import socket
import stat
import subprocess
import sys
from pathlib import Path

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
        for _ in range(3):  # looking for the owner does not disturb it
            assert Home(home).owner() is not None
        with pytest.raises(ServiceUnavailableError, match="no service is running"):  # one that begins
            FlightReader(Home(home)).status()
    assert Home(home).owner() is None
    Home(home).lock().release()


def test_a_killed_owner_holds_nothing(home: Path):
    code = f"import time; from logprobe.monitor.home import Home; h = Home({str(home)!r}).lock(); print('held', flush=True); time.sleep(600)"
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
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


def test_service_info_round_trip_is_for_the_user_only(home: Path):
    place = Home(home).create()
    place.write_service_info(INFO)
    assert place.service_info() == INFO
    assert INFO.address == "127.0.0.1:4711"
    assert stat.S_IMODE(place.service_file.stat().st_mode) == 0o600
    place.remove_service_info()
    assert place.service_info() is None
    place.remove_service_info()


def test_a_damaged_service_file_is_no_service(home: Path):
    place = Home(home).create()
    for content in ("", "{}", "[1]", '{"host": 1'):
        place.service_file.write_text(content)
        assert place.service_info() is None, content


def test_what_is_no_home_is_refused_and_naming_one_creates_nothing(tmp_path: Path):
    (tmp_path / "file").touch()
    for path, words in (
        (tmp_path / "file", "not a folder"),
        (tmp_path / "what?" / "home", "choose another"),
        (tmp_path / "C:\\runs" / "home", "choose another"),
        ("", "empty path"),
    ):
        with pytest.raises(ConfigurationError, match=words):
            Home(path)
    with pytest.raises(ConfigurationError, match="choose another"):
        Home(tmp_path / "file" / "home").create()
    Home(tmp_path / "home")
    assert not (tmp_path / "home").exists()


def test_a_new_home_survives_a_power_cut(tmp_path: Path) -> None:
    """Each folder's name is made durable in the folder above: else all that is flushed into it goes with it."""
    disk = FaultyDisk(tmp_path / "rules")
    home = tmp_path / "above" / "home"
    rules = [disk.rule("fsync", within=folder, only="directories", delay=1e-6) for folder in (home, home.parent)]
    program = "import sys; from logprobe.monitor.home import Home; Home(sys.argv[1]).create()"
    subprocess.run([sys.executable, "-c", program, str(home)], env=disk.environment(), check=True, timeout=120)
    # spool, raw and quarantine in the home; the home, by the folder above it.
    assert [rule.injected for rule in rules] == [3, 1]
