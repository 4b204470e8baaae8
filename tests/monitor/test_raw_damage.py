"""A raw file that is cut, flipped, empty or unreadable: a home opens without it, wherever it lies, and what needs it is refused by name."""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from operator_homes import raw_files
from recorded_home import feed, take_in
from segments import RUN, sampled, spool, trained

from logprobe.collectors.errors import QueryError
from logprobe.collectors.files import is_gone
from logprobe.monitor import queries
from logprobe.monitor.home import Home
from logprobe.monitor.store import raw_damage
from logprobe.monitor.store.raw_damage import Damaged, said_of
from logprobe.monitor.store.raw_files import RAW_SCHEMAS, empty_file, has_its_bytes
from logprobe.monitor.store.retention import Retention
from logprobe.monitor.store.sql import Desk
from logprobe.monitor.store.store import Store


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-40])


def _flip_footer(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-60:-20] = bytes(255 - byte for byte in content[-60:-20])
    content[-8 - int.from_bytes(content[-8:-4], "little")] ^= 0xFF  # the first byte, after which DuckDB names no file
    path.write_bytes(content)


def _flip_magic(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-4] + b"PAR2")


DAMAGE: dict[str, Callable[[Path], object]] = {
    "cut": _cut,
    "flipped-footer": _flip_footer,
    "flipped-magic": _flip_magic,
    "empty": lambda path: path.write_bytes(b""),
}
STEPS = "SELECT count(*) AS n FROM steps"
TOKENS = "SELECT count(*) AS n FROM tokens"
KEPT = "SELECT count(*) AS n FROM training_sequences WHERE raw_kept"


def refusal(damaged: Path) -> str:
    return rf"raw tokens cannot be read: .*{damaged.name}.*restore that file, or move it away"


def moved_and_damaged(home: Home, how: Callable[[Path], object]) -> tuple[Home, Path]:
    """A home with two sequences in two raw files of training, then moved; one file is damaged."""
    with Store.open(home) as store:
        feed(store, training=[trained("a", 0)], rollout=[sampled("a")])
        feed(store, training=[trained("b", 1)])
    moved = Home(home.path.rename(home.path.with_name("moved")))
    damaged = min((moved.raw / RUN / "training").glob("*.parquet"))
    how(damaged)
    return moved, damaged


def assert_refused(ask: Callable[[str], pa.Table], sql: str, damaged: Path) -> None:
    with pytest.raises(QueryError, match=refusal(damaged)):
        ask(sql)


def test_a_moved_home_opens_without_it_until_it_was_put_back_or_moved_away(home: Path, tmp_path: Path) -> None:
    moved, damaged = moved_and_damaged(Home(home), lambda path: shutil.copy(path, tmp_path / "whole"))
    before = raw_files(moved.path)
    for name, how in DAMAGE.items():
        moved = Home(moved.path.rename(tmp_path / name))  # the views have to be made again
        damaged = moved.raw / RUN / "training" / damaged.name
        shutil.copy(tmp_path / "whole", damaged)
        how(damaged)
        for read_only in (True, False):
            with Store.open(moved, read_only=read_only) as store:
                for ask in (store.query, Desk(store).answer):
                    assert ask(STEPS)["n"].to_pylist() == [2], name
                    assert_refused(ask, TOKENS, damaged)
    assert raw_files(moved.path) == before
    with Store.open(moved) as store:
        retention = Retention(store)
        retention.run_once()
        (problem,) = store.archive.problems()
        assert str(damaged) in problem
        assert "restore that file, or move it away" in problem
        shutil.copy(tmp_path / "whole", damaged)
        retention.run_once()
        assert store.archive.problems() == []
        assert store.query(TOKENS)["n"].to_pylist() == [8]
        assert store.query(KEPT)["n"].to_pylist() == [2]
        damaged.unlink()
        retention.run_once()
        assert store.query(KEPT)["n"].to_pylist() == [1]
    shutil.copy(tmp_path / "whole", damaged)
    with Store.open(moved) as store:
        take_in(store)
        assert store.query(KEPT)["n"].to_pylist() == [2]
        retention = Retention(store)
        _cut(damaged)
        store.damaged.look({file.path: (file.bytes, file.rows) for file in retention.files()})
        assert len(store.archive.problems()) == 1
        damaged.unlink()
        assert retention.run_once().missing_files == 1
        assert store.archive.problems() == []
        assert store.query(TOKENS)["n"].to_pylist() == [4]


def _other_columns() -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table({"segment_id": ["s"], "row": ["not a number"], "token_ids": ["none"]}), sink)
    return sink.getvalue().to_pybytes()


@pytest.mark.parametrize("content", [b"PAR1 of somebody PAR1", b"", _other_columns()], ids=["text", "empty", "columns"])
def test_a_foreign_file_with_a_valid_name_is_named_and_left_out(home: Path, content: bytes) -> None:
    with Store.open(Home(home)) as store:
        feed(store, training=[trained("a", 0)], rollout=[sampled("a")])
        (ours,) = (store.home.raw / RUN / "training").glob("*.parquet")
        foreign = ours.parent / f"{hashlib.blake2b(content, digest_size=16).hexdigest()}.parquet"
        foreign.write_bytes(content)
        for ask in (store.query, Desk(store).answer):
            assert ask(TOKENS)["n"].to_pylist() == [4]
        feed(store, training=[trained("b", 1)])  # a file that comes later is found, too
        assert store.query(TOKENS)["n"].to_pylist() == [8]
        _cut(ours)
        assert_refused(store.query, TOKENS, ours)  # beside a file that is not ours
    with Store.open(Home(home)) as store:
        store.archive.open()
        assert sum(str(foreign) in problem for problem in store.archive.problems()) == 1
    assert foreign.read_bytes() == content


OTHER = "a+b %2F/ü *"  # a run whose folder is called otherwise


def test_a_statement_about_other_runs_does_without_it(home: Path) -> None:
    of_run = f"SELECT count(rollout_logprob) AS n FROM tokens WHERE run = '{OTHER}'"
    answered = [of_run, f"{of_run} AND step = 0"]
    refused = [
        TOKENS,
        *(f"{TOKENS} WHERE {each}" for each in (f"run = '{RUN}'", f"run IN ('{OTHER}', '{RUN}')", "step = 7")),
    ]
    with Store.open(Home(home)) as store:
        for run in (RUN, OTHER):
            spool(home, run, training=[trained("a", received=False)], rollout=[sampled("a")])
        take_in(store)
        store.archive.merge()
        for kind in ("rollout", "training"):
            (damaged,) = (store.home.raw / RUN / kind).glob("*.parquet")
            whole = damaged.read_bytes()
            _flip_footer(damaged)
            of_kind = f"SELECT sum(len(token_ids)) AS n FROM raw_{kind} WHERE run IN ('{OTHER}', 'none')"
            desk = Desk(store)
            for ask in (store.query, desk.answer):
                assert [ask(sql)["n"].to_pylist() for sql in (*answered, of_kind)] == [[4]] * 3
                for sql in refused:
                    assert_refused(ask, sql, damaged)
            with pytest.raises(QueryError, match=r"other runs, named by WHERE run = '…', can be read"):
                desk.answer(TOKENS)
            damaged.write_bytes(whole)


def _flip_a_token(path: Path) -> None:
    content = bytearray(path.read_bytes())
    footer = int.from_bytes(content[-8:-4], "little")
    content[(len(content) - 8 - footer) // 2] ^= 1
    path.write_bytes(content)


def _flip_without_a_word(path: Path) -> None:
    """A byte that readers decode to another token or log-prob."""
    content = path.read_bytes()
    whole = pq.read_table(path, partitioning=None)
    group = pq.read_metadata(path).row_group(0)
    columns = [group.column(number) for number in range(group.num_columns)]
    (begin,) = [each.data_page_offset for each in columns if each.path_in_schema == "token_ids.list.element"]
    for place in range(begin, len(content)):
        path.write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])
        with suppress(OSError, pa.ArrowException, ValueError):
            found = pq.read_table(path, partitioning=None)
            if found.drop_columns("token_ids") == whole.drop_columns("token_ids") and found != whole:
                return
    raise AssertionError("every flip is seen")


def test_nobody_reads_flipped_bytes(home: Path, tmp_path: Path) -> None:
    """By the first statement after a start as by a later one; what needs another file is answered."""
    with Store.open(Home(home)) as store:
        feed(store, training=[trained("a", 0, received=False)])
        feed(store, training=[trained("b", 1)])
        damaged = (
            Home(home).path / queries.raw_places(store, run=RUN, segments=None, first=0, last=0)["path"][0].as_py()
        )
    shutil.copy(damaged, tmp_path)
    _flip_without_a_word(damaged)
    other = f"{TOKENS} WHERE step = 1"
    with Store.open(Home(home)) as store:
        desk = Desk(store)
        for sql in (
            TOKENS,
            f"{TOKENS} WHERE run = '{RUN}' AND step = 0",
            "SELECT max(list_sum(token_ids)) FROM raw_training",
        ):
            assert_refused(desk.answer, sql, damaged)
        assert desk.answer(other)["n"].to_pylist() == [4]
        feed(store, rollout=[sampled("a")])
        assert store.query("SELECT count(*) AS n FROM sequences WHERE rollout_source = 'joined'")["n"].to_pylist() == [
            0
        ]
        with pytest.raises(QueryError, match=refusal(damaged)):
            queries.export_tokens(store, run=RUN, step=0)
        assert queries.export_tokens(store, run=RUN, step=1).num_rows == 4
        (problem,) = store.archive.problems()
        assert str(damaged) in problem
        shutil.copy(tmp_path / damaged.name, damaged)
        assert desk.answer(TOKENS)["n"].to_pylist() == [8]
        assert queries.export_tokens(store, run=RUN, step=0).num_rows == 4


def test_a_failure_that_names_no_file_has_each_file_read_once(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []
    monkeypatch.setattr(raw_damage, "has_its_bytes", lambda path: not read.append(path.name) and has_its_bytes(path))
    with Store.open(Home(home)) as store:
        feed(store, training=[trained("a", 0)])
        feed(store, training=[trained("b", 1)])
        files = sorted((store.home.raw / RUN / "training").glob("*.parquet"))
        error, damaged = duckdb.InvalidInputException("TProtocolException: Invalid data"), Damaged(store.home)
        for _ in range(2):
            assert said_of(error, store.home.raw, damaged) == "TProtocolException: Invalid data"
        assert sorted(name for name in read if name in {file.name for file in files}) == [file.name for file in files]
        _flip_a_token(files[1])
        assert files[1].name in said_of(error, store.home.raw, damaged)


def test_the_file_without_rows_is_ours_to_write_again(home: Path) -> None:
    with Store.open(Home(home)) as store:
        feed(store, training=[trained("a", 0)])
    for kind, how in zip(RAW_SCHEMAS, (_cut, _flip_footer), strict=True):
        how(empty_file(Home(home), kind))
    with Store.open(Home(home)) as store:
        assert store.query(TOKENS)["n"].to_pylist() == [4]


def test_a_file_that_cannot_be_looked_at_is_not_gone(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    moved, path = moved_and_damaged(Home(home), lambda _: None)
    look = Path.stat

    def refused(self: Path, **options: bool) -> os.stat_result:
        if self == path:
            raise OSError(errno.EIO, "refused", str(self))
        return look(self, **options)

    with Store.open(moved) as store:
        with monkeypatch.context() as patched:
            patched.setattr(Path, "stat", refused)
            assert Retention(store).run_once().missing_files == 0
        assert Retention(store).run_once().missing_files == 0
        assert store.query(TOKENS)["n"].to_pylist() == [8]


def test_only_what_is_not_there_is_gone(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert not is_gone(tmp_path / "file")
    assert is_gone(tmp_path / "none")
    assert is_gone(tmp_path / "file" / "below")
    assert not is_gone(tmp_path / ("n" * 300)), "the name is too long to look"
