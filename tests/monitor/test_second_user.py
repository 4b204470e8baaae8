"""What another user of the same machine can do to a home, and what a group that shares one can: real second uids."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path
from tempfile import mkdtemp

import numpy as np
import pytest
from processes import eventually
from second_user import GROUP, MALLORY, SERVICE, TRAINER, as_user

from logprobe.app.commands import import_
from logprobe.app.dashboard.access import token
from logprobe.collectors.correction import CorrectionConfig
from logprobe.collectors.directives import DirectiveFile, Directives, encode
from logprobe.collectors.errors import ConfigurationError, DirectiveError, HomeBusyError, ServiceUnavailableError
from logprobe.collectors.recorder.recorder import Recorder
from logprobe.collectors.switch import CorrectionSwitch
from logprobe.monitor.exporters.table_files import replaced
from logprobe.monitor.home import Home, ServiceInfo, apply_umask
from logprobe.monitor.live.ingest import Ingester
from logprobe.monitor.reader import FlightReader
from logprobe.monitor.store.store import Store

RUN = "run"
ON = Directives(RUN).issue(10, CorrectionConfig(is_level="token", is_upper=2.0), "growth")
INFO = ServiceInfo(host="127.0.0.1", port=1, token="secret", pid=1, started="2026-01-01T00:00:00+00:00")
OWNED = ("archive", "quarantine", "directives", "service.lock", "service.json", "logprobe.duckdb")


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder that every user can reach; pytest's own is its user's alone."""
    folder = Path(mkdtemp(prefix="logprobe-shared-"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def home(place: Path) -> Path:
    """A home whose top folder everybody may write to, which is the worst that its owner can do."""
    folder = place / "home"
    folder.mkdir()
    folder.chmod(0o777)
    return folder


@pytest.fixture
def victim(place: Path) -> Path:
    """A file of the service's user that nobody else may touch."""
    file = place / "victim"
    file.write_text("precious")
    file.chmod(0o600)
    return file


def test_a_new_home_is_its_users_alone(place: Path) -> None:
    home = Home(place / "new").create()
    home.write_service_info(INFO)
    token.read(home)
    assert stat.S_IMODE(home.path.stat().st_mode) == 0o700
    for look in (lambda: list(home.path.iterdir()), home.service_file.read_bytes, (home.path / "x").touch):
        with pytest.raises(PermissionError):
            as_user(look)
    assert as_user(home.service_info) is None


def test_what_another_user_planted_in_an_open_home_is_refused_and_leads_nowhere(home: Path, victim: Path) -> None:
    for name in OWNED:
        as_user(lambda name=name: (home / name).symlink_to(victim))
        with pytest.raises(ConfigurationError, match=rf"{name} is a link that user {MALLORY} made"):
            Home(home).lock()
        (home / name).unlink()
        is_folder = name in {"archive", "quarantine", "directives"}
        as_user((home / name).mkdir if is_folder else (home / name).touch)
        with pytest.raises(ConfigurationError, match=f"put there by user {MALLORY}"):
            Home(home).lock()
        (home / name).rmdir() if is_folder else (home / name).unlink()
    assert victim.read_text() == "precious"


def test_a_link_in_place_of_the_shared_folder_is_refused_and_ones_own_links_are_followed(
    home: Path, place: Path
) -> None:
    as_user(lambda: (home / "spool").symlink_to(place))
    with pytest.raises(ConfigurationError, match="spool is a link"):
        Home(home).create()
    (home / "spool").unlink()
    as_user((home / "spool").mkdir)
    (place / "large disk").mkdir()
    (home / "archive").symlink_to(place / "large disk")
    Home(home).lock().release()


def test_a_home_and_a_service_of_another_user_are_said_to_be(place: Path) -> None:
    home = Home(place / "shown").create()
    home.path.chmod(0o755)
    with home.lock() as lock:
        lock.announce("127.0.0.1:4711")
        home.write_service_info(INFO)
        with pytest.raises(
            ServiceUnavailableError, match=r"a service of another user is running for .*run this as that"
        ):
            as_user(FlightReader(Home(home.path)).status)
    with pytest.raises(HomeBusyError, match=f"^{home.path} belongs to another user \\("):
        as_user(Home(home.path).lock)


def test_an_address_of_a_service_that_another_user_wrote_is_none(home: Path) -> None:
    as_user(lambda: Home(home).write_service_info(INFO))
    assert Home(home).service_info() is None
    (home / "service.json").unlink()
    Home(home).write_service_info(INFO)
    assert Home(home).service_info() == INFO


def test_a_token_that_another_user_wrote_opens_nothing(home: Path) -> None:
    def plant() -> None:
        (home / "token").touch(mode=0o600)
        (home / "token").write_text("known")

    as_user(plant)
    with pytest.raises(ConfigurationError, match="belongs to another user"):
        token.read(Home(home))
    assert token.renew(Home(home)) == token.read(Home(home)) != "known"


def test_a_forged_directive_changes_no_training(home: Path) -> None:
    (home / "directives").mkdir()
    (home / "directives").chmod(0o777)
    file = DirectiveFile(home, RUN)
    as_user(lambda: file.path.write_bytes(encode(ON, None)))
    for mode in (0o600, 0o644, 0o666):
        file.path.chmod(mode)
        with pytest.raises(DirectiveError, match=f"belongs to user {MALLORY}"):
            file.read(None)
    with CorrectionSwitch(home, RUN, poll_seconds=0.01) as switch:
        eventually(lambda: "directive_refused" in switch.health["problems"], "its thread has looked")
        assert switch.current(10) is None


def test_the_owners_directive_counts_and_one_that_others_can_change_only_with_a_signature(home: Path) -> None:
    file = DirectiveFile(home, RUN)
    file.write(ON, None)
    assert as_user(lambda: file.read(None), TRAINER).version == 1, "a trainer of another user believes it"
    file.path.chmod(0o666)
    with pytest.raises(DirectiveError, match="can be changed by others"):
        file.read(None)
    key = b"0123456789abcdef"
    file.write(ON, key)
    file.path.chmod(0o666)
    assert file.read(key).version == 1


def test_a_directive_is_read_through_no_link_and_no_pipe(home: Path, place: Path) -> None:
    (home / "directives").mkdir()
    file = DirectiveFile(home, RUN)
    (place / "elsewhere").write_bytes(encode(ON, None))
    file.path.symlink_to(place / "elsewhere")
    with pytest.raises(OSError, match="symbolic links"):
        file.read(None)
    file.path.unlink()
    os.mkfifo(file.path)
    with pytest.raises(OSError, match="not a regular file"):
        file.read(None)
    file.write(ON, None)  # the service puts it right
    assert file.read(None).version == 1


def test_neither_the_kill_switch_nor_an_import_overwrites_anything_behind_a_link(home: Path, victim: Path) -> None:
    (home / "directives").mkdir()
    (home / "directives").chmod(0o777)
    file = DirectiveFile(home, RUN)
    as_user(lambda: file.stop_path.symlink_to(victim))
    with pytest.raises(OSError, match="symbolic links"):
        file.stop("ann")
    assert file.read(None).stopped  # whatever is there, it stops: that is the safe side
    as_user(lambda: (home / "import.lock").symlink_to(victim))
    with pytest.raises(OSError, match="symbolic links"), import_._alone(Home(home)):
        pass
    assert victim.read_text() == "precious"


def test_an_export_writes_through_no_link(place: Path, victim: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Even when its temporary name is guessed."""
    monkeypatch.setattr("secrets.token_hex", lambda _: "guessed")
    place.chmod(0o777)
    as_user(lambda: (place / f".run.csv.{os.getppid()}.guessed.tmp").symlink_to(victim))
    with pytest.raises(ConfigurationError, match="cannot be written"), replaced(place / "run.csv") as file:
        file.write(b"x")
    assert victim.read_text() == "precious"


def record(home: Path) -> None:
    values = -np.ones((4, 8), np.float32)
    content = {"token_ids": np.ones((4, 8), np.int64), "rollout_logprobs": values, "trainer_logprobs": values}
    with Recorder(home, RUN, rank=0) as recorder:
        recorder.training(step=1, sample_ids=list("abcd"), mask=np.ones((4, 8), bool), **content)
        assert recorder.flush()


def ingest(home: Path) -> int:
    with Home(home).lock(), Store.open(Home(home)) as store:
        Ingester(store).run_once()
        return int(store.query("SELECT count(*) AS n FROM training_sequences")["n"][0].as_py())


def test_a_group_shares_a_home_and_nobody_else_sees_it(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record(place / "ours")
    assert ingest(place / "ours") == 4  # everything is imported and read: a second user may not see this checkout
    monkeypatch.setenv("LOGPROBE_UMASK", "007")
    place.chmod(0o777)
    home = place / "group"

    def serve() -> int:
        apply_umask()
        Home(home).create()
        return ingest(home)

    assert as_user(serve, SERVICE, GROUP) == 0
    assert stat.S_IMODE(home.stat().st_mode) == 0o2770
    as_user(lambda: record(home), TRAINER, GROUP, umask=0o007)
    assert list(home.glob("spool/*/*/*"))
    assert as_user(lambda: ingest(home), SERVICE, GROUP, umask=0o007) == 4
    assert not list(home.glob("spool/*/*/*.arrow"))
    with pytest.raises(PermissionError):
        as_user(lambda: list(home.iterdir()))
    with pytest.raises(PermissionError):
        as_user(lambda: list(home.iterdir()), TRAINER, MALLORY)


def test_a_umask_that_is_none_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    for text in ("8", "-1", "rwx", "1777", "700"):
        monkeypatch.setenv("LOGPROBE_UMASK", text)
        with pytest.raises(ConfigurationError, match="expected an octal umask"):
            apply_umask()
