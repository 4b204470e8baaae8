"""The journal: what is confirmed is there after any end of a process, and nothing else is taken for it."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from logprobe.collectors.clock import Time
from logprobe.collectors.errors import StoreError
from logprobe.collectors.files import Disk
from logprobe.monitor.store.journal import NAME, Entry, Journal


class Noon(Time):
    def wall(self) -> float:
        return 1.8e9


def filled(home: Path, count: int = 3) -> bytes:
    journal = Journal(home, time=Noon())
    assert journal.open() == []
    for number in range(count):
        entry = journal.append("silence", {"id": f"ä{number}", "until": None, "matchers": {"rule": "a\nb"}})
        assert entry.number == number + 1
    return (home / NAME).read_bytes()


def names(entries: list[Entry]) -> list[object]:
    return [entry.what["id"] for entry in entries]


@pytest.mark.parametrize("rest", [b"", b"\0" * 100, b"\xff\xfe", b"{}", b'{"crc":"00000000","entry":{}}'])
def test_what_was_said_is_there_in_order_and_what_follows_it_and_is_none_is_removed(
    tmp_path: Path, rest: bytes
) -> None:
    content = filled(tmp_path)
    assert content.count(b"\n") == 3
    (tmp_path / NAME).write_bytes(content + rest)
    entries = Journal(tmp_path).open()
    assert names(entries) == ["ä0", "ä1", "ä2"]
    assert entries[1] == Entry(
        2, "2027-01-15T08:00:00.000+00:00", "silence", {"id": "ä1", "until": None, "matchers": {"rule": "a\nb"}}
    )
    assert (tmp_path / NAME).read_bytes() == content


def test_a_last_line_that_was_cut_anywhere_is_removed_and_the_next_one_follows(tmp_path: Path) -> None:
    content = filled(tmp_path)
    path = tmp_path / NAME
    start = content.rindex(b"\n", 0, -1) + 1
    for end in [*range(start, len(content), 5), len(content) - 1]:
        path.write_bytes(content[:end])
        journal = Journal(tmp_path, time=Noon())
        whole = end == len(content) - 1  # all but the line's end
        assert names(journal.open()) == ["ä0", "ä1"] + ["ä2"] * whole
        assert path.read_bytes() == (content if whole else content[:start])
        assert journal.append("silence", {"id": "next"}).number == 3 + whole
        again = Journal(tmp_path)
        assert names(again.open())[-1] == "next"
        assert again.damaged == []


def test_a_damaged_line_is_named_and_stays_and_costs_no_other(tmp_path: Path) -> None:
    content = filled(tmp_path)
    second = content.index(b"\n") + 1
    for at in range(second, content.index(b"\n", second), 4):
        damaged = content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :]
        if content[at] ^ 1 == 0x0A:
            continue  # that makes two lines of it
        (tmp_path / NAME).write_bytes(damaged)
        journal = Journal(tmp_path)
        assert names(journal.open()) == ["ä0", "ä2"]
        assert journal.damaged == [2]
        assert (tmp_path / NAME).read_bytes() == damaged
    assert journal.append("silence", {"id": "next"}).number == 4


class Failing(Disk):
    """A real disk on which an append comes half way, as often as it is told."""

    def __init__(self, appends: int, truncates: int = 0, syncs: int = 0) -> None:
        super().__init__()
        self.appends, self.truncates, self.syncs = appends, truncates, syncs

    def append(self, path: Path, content: bytes, *, mode: int = 0o600) -> None:
        if self.appends:
            self.appends -= 1
            super().append(path, content[: len(content) // 2], mode=mode)
            raise OSError(errno.ENOSPC, "full", str(path))
        super().append(path, content, mode=mode)

    def truncate(self, path: Path, size: int) -> None:
        if self.truncates:
            self.truncates -= 1
            raise OSError(errno.EIO, "refused", str(path))
        super().truncate(path, size)

    def sync(self, path: Path) -> None:
        if self.syncs and path.is_dir():
            self.syncs -= 1
            raise OSError(errno.EIO, "refused", str(path))
        super().sync(path)


@pytest.mark.parametrize(("disk", "failures"), [((2,), 2), ((1, 2), 2), ((1, 1), 1), ((0, 0, 1), 1)])
def test_what_could_not_be_written_was_not_done_and_leaves_nothing(
    tmp_path: Path, disk: tuple[int, ...], failures: int
) -> None:
    journal = Journal(tmp_path, disk=Failing(*disk))
    journal.open()
    for _ in range(failures):
        with pytest.raises(StoreError, match="The action was not performed"):
            journal.append("silence", {"id": "refused"})
    assert journal.append("silence", {"id": "done"}).number == 1
    again = Journal(tmp_path)
    assert names(again.open()) == ["done"]
    assert again.damaged == []


def test_a_journal_that_cannot_be_read_is_not_an_empty_one(tmp_path: Path) -> None:
    filled(tmp_path)

    class Unreadable(Disk):
        def read(self, path: Path, *, last: int | None = None) -> bytes:
            raise OSError(errno.EIO, "refused", str(path))

    with pytest.raises(StoreError, match="Recorded user actions are unknown"):
        Journal(tmp_path, disk=Unreadable()).open()
