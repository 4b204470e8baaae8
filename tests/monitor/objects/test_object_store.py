"""Raw tokens in an object store (S3; `make test-objects`: Azure, Google): the same digits as on the disk, and what happens when it is away, refuses, or is killed."""

from __future__ import annotations

import contextlib
import io
import itertools
import json
import shutil
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from object_server import KINDS, ObjectServer
from segments import at, records, sampled, trained
from store_contents import raw_paths, rows, value

from logprobe.app import cli
from logprobe.collectors.errors import ConfigurationError, ObjectStoreError, QueryError, SegmentError, StoreError
from logprobe.collectors.spool.segments import SpoolWriter
from logprobe.monitor.analysis.profile_job import ProfileJob
from logprobe.monitor.analysis.step_job import StepJob
from logprobe.monitor.deletion import part as deletion
from logprobe.monitor.deletion.tombstones import Tombstone, Tombstones
from logprobe.monitor.free_sql.limits import Limits
from logprobe.monitor.free_sql.service import Question, SqlService
from logprobe.monitor.home import Home
from logprobe.monitor.ingest.adopting import Adopter
from logprobe.monitor.ingest.ingest import Ingester
from logprobe.monitor.ingest.join import Joiner
from logprobe.monitor.objects.moving import Mover, MovingReport, object_address
from logprobe.monitor.objects.settings import StorageSettings, load
from logprobe.monitor.objects.store import ObjectStore
from logprobe.monitor.recovery.rebuilding import rebuild
from logprobe.monitor.store import raw_files
from logprobe.monitor.store.raw_files import SUMMED, block_sums
from logprobe.monitor.store.raw_ownership import MARK
from logprobe.monitor.store.retention import Retention, RetentionPolicy
from logprobe.monitor.store.store import Store

CORRUPTED = 100  # uploads
STEPS = 6
TOKENS = 40  # of a sequence
LONG = 200_000  # of one that weighs more than footers and what DuckDB reads ahead
ALL = "SELECT * EXCLUDE (segment_id) FROM tokens WHERE run = 'run' ORDER BY step, sample_id, position"
OF_A_STEP = (
    "SELECT position, rollout_logprob, trainer_logprob FROM tokens WHERE run = 'run' AND step = 2 ORDER BY position"
)


def write(store: Store, first: int, last: int, tokens: int = TOKENS, *, begun: datetime | None = None) -> None:
    """Steps of which the trainer did not receive r: it comes from the engine's records. `begun`: when; None: long ago."""
    writer = SpoolWriter(store.home.path, "run", f"w{first}")
    ingester, random = Ingester(store), np.random.default_rng(first)
    for step in range(first, last):
        ids = random.integers(0, 50_000, tokens).tolist()
        r = (-random.random(tokens, np.float32)).tolist()
        now = at(step) if begun is None else begun + timedelta(seconds=step)
        t = [x - 0.001 for x in r]
        trained_on = trained(f"s{step}", step, tokens, token_ids=ids, received=False, trainer_logprobs=t, time=now)
        writer.write("training", records("training", trained_on))
        writer.write("rollout", records("rollout", sampled(f"s{step}", tokens, token_ids=ids, logprobs=r, time=now)))
        ingester.run_once()
    Joiner(store).run_once()
    StepJob(store).run_once()


def filled(folder: Path) -> Store:
    store = Store.open(Home(folder))
    write(store, 0, STEPS)
    return store


@pytest.fixture
def home_with_steps(home: Path) -> Iterator[Store]:
    with filled(home) as store:
        yield store


def move(store: Store, policy: RetentionPolicy | None = None) -> MovingReport:
    return Mover(store, Retention(store, policy), threading.Event()).run_once()


Ask = Callable[[str], list[dict[str, Any]]]


@pytest.fixture
def ask(home_with_steps: Store) -> Iterator[Ask]:
    """Free SQL, whose process reaches no network."""
    with SqlService(home_with_steps.home, home_with_steps.snapshot, Limits()) as service:
        yield lambda sql: service.answer(Question(sql)).table().to_pylist()


def tokens_of(store: Store, *steps: int) -> int:
    """How many tokens of these steps can be read; all have both sides."""
    found = [row for step in steps for row in store.read("export_tokens", run="run", step=step).to_pylist()]
    assert all(row["rollout_logprob"] is not None for row in found)
    return len(found)


def everything(store: Store, ask: Ask) -> dict[str, Any]:
    """What statements, free SQL and jobs say of raw tokens."""
    ((segment, row),) = [
        (found["segment_id"], found["row"])
        for found in rows(store, "SELECT segment_id, row FROM training_sequences WHERE step = 2")
    ]
    segments = [found["segment_id"] for found in rows(store, "SELECT DISTINCT segment_id FROM training_sequences")]
    return {
        "one sequence": store.read("app_tokens_sequence", run="run", step=2, segment=segment, row=row).to_pylist(),
        "worst": store.read("slice_worst_tokens", run="run", first=1, last=4, count=3).to_pylist(),
        "export": store.read("export_tokens", run="run", step=3).to_pylist(),
        "records": store.read("export_training", run="run", segments=segments).to_pylist(),
        "peers": store.read("peer_tokens", run="run", first=0, last=STEPS).to_pylist(),
        "switches": store.read("event_study_switch", run="run", first=None, last=None, reach=4).to_pylist(),
        "all": ask(ALL),
        "a step": ask(OF_A_STEP),
        "rollouts": ask("SELECT sample_id, logprobs FROM raw_rollout ORDER BY sample_id"),
    }


def test_the_same_tokens_from_the_object_store(home_with_steps: Store, server: ObjectServer, ask: Ask) -> None:
    store = home_with_steps
    before = everything(store, ask)
    assert len(before["all"]) == STEPS * TOKENS
    assert before["all"][0]["rollout_logprob"] is not None
    server.settings(store.home.path)
    report = move(store)
    assert (report.problem, report.moved_files, report.waiting_files, report.to_remove) == (None, 2, 0, 0)
    assert raw_paths(store) == []
    assert len(server.objects()) == 2, "one file of each kind: small ones are merged on their way"
    after = everything(store, ask)
    # Means over all tokens: DuckDB adds in the order in which its threads are done, so the last digits differ from query to query.
    ((means_after,), (means_before,)) = (found.pop("switches") for found in (after, before))
    assert means_after.pop("distance") is means_before.pop("distance") is None, "no sequence has a switch"
    assert means_after == pytest.approx(means_before, rel=1e-9)
    assert after == before


def test_an_object_that_differs_in_one_byte_is_never_taken_for_the_file(
    home: Path, server: ObjectServer, tmp_path: Path
) -> None:
    server.settings(Home(home).create().path)
    objects, random = ObjectStore(load(Home(home))), np.random.default_rng(0)
    content = random.integers(0, 256, 4000, np.uint8).tobytes()
    file = tmp_path / "tokens.parquet"
    file.write_bytes(content)
    accepted = 0
    for number, at_byte in enumerate(random.integers(0, len(content) - 16, CORRUPTED)):
        was = content[at_byte : at_byte + 16]
        server.proxy.changed = (was, was[:8] + bytes([was[8] ^ 1]) + was[9:])
        with contextlib.suppress(ObjectStoreError):
            objects.put(file, f"{server.url}/run/training/{number}.parquet")
            accepted += 1
    assert accepted == 0
    server.proxy.changed = None
    objects.put(file, f"{server.url}/run/training/0.parquet")
    assert objects.read(f"{server.url}/run/training/0.parquet", 0, len(content)) == content


def test_credentials_that_may_not_delete_still_upload(home_with_steps: Store, server: ObjectServer, ask: Ask) -> None:
    store = home_with_steps
    before = ask(ALL)
    server.settings(store.home.path)
    with store.transaction() as cursor:
        store.execute(cursor, "doom_object", url=f"{server.url}/run/training/interrupted.parquet")
    server.proxy.changed = (b"DELETE /", b"DELETX /")
    report = move(store)
    assert report.problem is not None
    assert (report.moved_files, report.waiting_files, report.to_remove) == (2, 0, 1)
    assert raw_paths(store) == []
    assert ask(ALL) == before
    server.proxy.changed = None
    assert (move(store).to_remove, ask(ALL)) == (0, before)


def test_steps_on_the_disk_and_in_the_object_store_are_one_run(
    home_with_steps: Store, server: ObjectServer, ask: Ask
) -> None:
    store = home_with_steps
    server.settings(store.home.path)
    move(store)
    write(store, STEPS, STEPS + 2)
    assert len(raw_paths(store)) == 4
    tokens = ask(ALL)
    assert [row["step"] for row in tokens[::TOKENS]] == list(range(STEPS + 2))
    assert all(row["rollout_logprob"] is not None for row in tokens)
    profiled = ProfileJob(store).run_once()
    assert (profiled.problem, profiled.tokens) == (None, (STEPS + 2) * TOKENS), "the job reads both places"


def test_a_step_costs_its_own_part_of_a_file(home: Path, server: ObjectServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(raw_files, "_ROW_GROUP_TOKENS", LONG)
    with Store.open(Home(home)) as store:
        write(store, 0, STEPS, LONG)
        server.settings(home)
        report = move(store)
        assert report.stored_files == 2
        before = server.proxy.passed
        assert store.read("export_tokens", run="run", step=2).num_rows == LONG
        assert server.proxy.passed - before < server.most_read * report.moved_bytes
        before = server.proxy.passed
        store.read("raw_files")
        assert store.read("export_tokens", run="run", step=STEPS).num_rows == 0
        assert server.proxy.passed == before, "the ledger knows that the file has no such step"


def test_a_server_that_is_away_holds_up_nothing_but_its_own_steps(
    home_with_steps: Store, server: ObjectServer, ask: Ask
) -> None:
    store = home_with_steps
    server.settings(store.home.path)
    move(store)
    write(store, STEPS, STEPS + 1)
    server.kill()
    with pytest.raises(
        QueryError, match=rf"^raw tokens in the object store cannot be read: {server.place} does not answer \([^\n]*\)"
    ):
        store.read("export_tokens", run="run", step=2)
    with pytest.raises(QueryError, match="does not answer"):
        ask(OF_A_STEP)
    assert store.read("export_tokens", run="run", step=STEPS).num_rows == TOKENS
    assert len(ask(f"SELECT position FROM tokens WHERE run = 'run' AND step = {STEPS}")) == TOKENS
    report = move(store)
    assert "does not answer" in report.problem
    assert report.waiting_files == 2
    assert report.to_remove >= 1, "the upload that failed is known"
    server.start()
    report = move(store)
    assert (report.problem, report.waiting_files) == (None, 0)
    move(store)
    assert tokens_of(store, *range(STEPS + 1)) == (STEPS + 1) * TOKENS
    assert len(server.objects()) == value(store, "SELECT count(*) FROM raw_files")


# Azure's library waits for the server to end the connection on which it sends an upload again: minutes.
@pytest.mark.parametrize("server", [kind for kind in KINDS if kind != "azure"], indirect=True)
def test_an_upload_that_was_cut_off_leaves_nothing(home_with_steps: Store, server: ObjectServer) -> None:
    store = home_with_steps
    server.settings(store.home.path)
    server.proxy.cut_after = 2_000
    assert move(store).problem is not None
    server.proxy.cut_after = None
    server.proxy.cut()
    assert tokens_of(store, *range(STEPS)) == STEPS * TOKENS, "the files are still on the disk"
    assert move(store).problem is None
    move(store)
    assert len(server.objects()) == value(store, "SELECT count(location) FROM raw_files") == 2


@pytest.mark.parametrize(
    ("fault", "words"),
    [("credentials", "refuses the credentials"), ("bucket", "has no such bucket"), ("endpoint", "does not answer")],
)
def test_what_is_wrong_is_said_in_one_line_and_nothing_is_lost(
    home_with_steps: Store, server: ObjectServer, monkeypatch: pytest.MonkeyPatch, fault: str, words: str
) -> None:
    store = home_with_steps
    if fault == "credentials":
        server.credentials(monkeypatch, wrong=True)
    wrong = {"bucket": {"raw": server.nowhere}, "endpoint": {"endpoint": "http://127.0.0.1:9"}}.get(fault, {})
    server.settings(store.home.path, **wrong)
    report = move(store)
    assert words in report.problem
    assert "\n" not in report.problem
    assert report.waiting_files == 2
    assert tokens_of(store, *range(STEPS)) == STEPS * TOKENS


def test_a_bucket_that_is_gone(home_with_steps: Store, server: ObjectServer) -> None:
    store = home_with_steps
    server.settings(store.home.path)
    move(store)
    server.hide_bucket()
    with pytest.raises(QueryError, match=f"^raw tokens in the object store cannot be read: {server.place}"):
        store.read("export_tokens", run="run", step=2)
    if server.show_bucket():
        assert store.read("export_tokens", run="run", step=2).num_rows == TOKENS


def test_retention_removes_objects_and_waits_for_a_server_that_is_away(
    home_with_steps: Store, server: ObjectServer
) -> None:
    store = home_with_steps
    server.settings(store.home.path)
    move(store)
    Retention(store, RetentionPolicy(max_bytes=0)).run_once()
    assert len(server.objects()) == 2, "the disk's budget is no limit of the object store"
    server.kill()
    Retention(store, RetentionPolicy(max_age=timedelta(0))).run_once()
    assert tokens_of(store, *range(STEPS)) == 0
    assert "does not answer" in move(store).problem
    server.start()
    report = move(store)
    assert (report.problem, report.removed_objects, server.objects()) == (None, 2, [])


def test_an_object_stays_while_a_read_that_may_need_it_runs(home_with_steps: Store, server: ObjectServer) -> None:
    store = home_with_steps
    server.settings(store.home.path)
    move(store)
    with store.holding_files():
        Retention(store, RetentionPolicy(max_age=timedelta(0))).run_once()
        assert move(store).removed_objects == 0
        assert len(server.objects()) == 2
    assert move(store).removed_objects == 2


def test_a_file_that_goes_while_it_is_sent_leaves_no_object(home_with_steps: Store, server: ObjectServer) -> None:
    store = home_with_steps
    server.settings(store.home.path)
    retention = Retention(store, RetentionPolicy(max_age=timedelta(0)))
    put = store.objects.put

    def removed_meanwhile(path: Path, url: str) -> None:
        put(path, url)
        retention.run_once(compact=False)

    store.objects.put = removed_meanwhile  # type: ignore[method-assign]
    Mover(store, Retention(store), threading.Event()).run_once()
    move(store)
    assert server.objects() == []
    assert value(store, "SELECT count(*) FROM raw_files") == 0


def test_a_copy_that_a_killed_service_left_on_the_disk_counts_once(
    home_with_steps: Store, server: ObjectServer, ask: Ask
) -> None:
    store = home_with_steps
    server.settings(store.home.path)
    Retention(store).merge(Retention(store).files())
    store.retire = lambda *_, **__: None  # type: ignore[method-assign]  # killed between commit and removal
    assert move(store).moved_files == len(raw_paths(store)) == 2
    assert len(ask(ALL)) == STEPS * TOKENS, "a token that lies in both places counts once"
    Ingester(store).run_once()
    assert raw_paths(store) == []


def test_two_homes_do_not_share_a_prefix_and_a_copy_removes_nothing(
    home_with_steps: Store, server: ObjectServer, tmp_path: Path
) -> None:
    """Nor is what another one wrote there removed, once its own home is gone from the disk or the mark from the prefix."""
    store = home_with_steps
    server.settings(store.home.path)
    assert move(store).problem is None
    objects = server.objects()
    store.checkpoint()
    with filled(tmp_path / "other") as other:
        server.settings(other.home.path)
        assert f"the objects of another store (home {store.home.path}" in str(move(other).problem)
        with pytest.raises(ObjectStoreError, match="give this home a prefix of its own"):
            other.object_owner.require(server.url)
        assert move(other).waiting_files == 2
        other.objects.remove(f"{server.url}/{MARK}")
        assert "objects that this store does not know" in str(move(other).problem)
        assert other.read("doomed_objects").num_rows == 0
    (tmp_path / "copy").mkdir()
    for name in ("logprobe.duckdb", "logprobe.yaml"):
        shutil.copy(store.home.path / name, tmp_path / "copy" / name)
    store.object_owner._trusted.clear()
    assert move(store).problem is None  # the mark is back
    with Store.open(Home(tmp_path / "copy")) as copy:
        with copy.transaction() as cursor:
            copy.execute(cursor, "doom_object", url=f"{server.place}/{objects[0]}")
        assert f"of which {tmp_path / 'copy'} is a copy" in str(move(copy).problem)
    assert server.objects() == objects


def test_a_moved_home_keeps_its_prefix(home: Path, server: ObjectServer, tmp_path: Path) -> None:
    with filled(home) as store:
        server.settings(store.home.path)
        move(store)
    moved = home.rename(tmp_path / "moved")
    with Store.open(Home(moved)) as store:
        write(store, 10, 11)
        report = move(store)
        assert (report.problem, report.moved_files) == (None, 2)


NUMBERS = "SELECT run, step, metric, value FROM step_metrics ORDER BY ALL"


def known_numbers(store: Store) -> dict[tuple[Any, ...], float]:
    """Of every step."""
    return {(row["step"], row["metric"]): row["value"] for row in rows(store, NUMBERS) if row["value"] is not None}


def numbers(store: Store) -> tuple[dict[tuple[Any, ...], float], int]:
    """Every number of every step that is known, and how many tokens can be read with both sides."""
    return known_numbers(store), tokens_of(store, *range(STEPS))


def lost(home: Path) -> None:
    for name in ("logprobe.duckdb", "logprobe.duckdb.wal"):
        (home / name).unlink(missing_ok=True)


Moved = tuple[Path, Path, dict[tuple[Any, ...], float], int]


@pytest.fixture
def moved(home: Path, tmp_path: Path) -> Moved:
    """A home whose store is lost and two thirds of whose steps are in the object store; its prefix, and its numbers of before."""
    share = tmp_path / "share"
    (Home(home).create().path / "logprobe.yaml").write_text(f"storage:\n  raw: file://{share}\n  after: 0\n")
    with Store.open(Home(home)) as store:
        for first in (0, 2):
            write(store, first, first + 2)
            assert move(store).moved_files == 2
        write(store, 4, STEPS)
        before = numbers(store)
    lost(home)
    return home, share, *before


def test_a_mistake_in_the_settings_leaves_what_was_moved_readable(home: Path, tmp_path: Path) -> None:
    file = Home(home).create().path / "logprobe.yaml"
    file.write_text(f"storage:\n  raw: file://{tmp_path / 'share'}\n  after: 0\n")
    with Store.open(Home(home)) as store:
        write(store, 0, 2)
        assert move(store).moved_files == 2
        before = numbers(store)
        file.write_text(f"{file.read_text()}chanels: {{}}\n")
        assert numbers(store) == before
        with pytest.raises(ConfigurationError, match="unknown key 'chanels'"):
            move(store)


def contents(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in sorted(folder.rglob("*.parquet"))}


def test_a_rebuilt_store_uses_its_prefix_again_and_takes_in_what_is_there(moved: Moved) -> None:
    home, share, values, tokens = moved
    objects = contents(share)
    done = rebuild(Home(home))
    assert (done.adopted_objects, done.left_objects, done.unreadable, done.incomplete) == (4, [], [], {})
    assert done.sequences == 2 * STEPS
    with Store.open(Home(home)) as store:
        assert numbers(store) == (pytest.approx(values, rel=1e-9), tokens) != ({}, 0)
        assert len(store.raw_objects()) == 4
        write(store, 10, 11)
        assert move(store).problem is None
    assert objects.items() < contents(share).items()
    again = rebuild(Home(home))
    assert (again.sequences, again.adopted_objects, again.left_objects) == (0, 0, [])


@pytest.mark.parametrize("rebuilt", [False, True])
def test_nobody_reads_flipped_bytes_of_an_object(moved: Moved, rebuilt: bool) -> None:
    """What a statement reads of it is what was stored, or the statement is refused by the object's name; other objects can be read."""
    home, share, _, _ = moved
    rebuild(Home(home))
    with Store.open(Home(home)) as store, SqlService(store.home, store.snapshot, Limits()) as service:
        write(store, 10, 12)
        move(store)
        chosen = (min if rebuilt else max)((share / "run" / "training").iterdir())  # the first steps are in their names
        content, (first, last) = chosen.read_bytes(), map(int, chosen.name.split("-")[:2])
        steps = (*range(STEPS), 10, 11)
        before = {step: store.read("export_tokens", run="run", step=step).to_pylist() for step in steps}
        for place in range(0, len(content), len(content) // 40):
            chosen.write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])
            store.objects._opened.cache_clear()
            with pytest.raises(
                QueryError, match=f"{chosen.name}: its bytes are not those that were stored; put it back"
            ):
                store.read("export_tokens", run="run", step=first)
        with pytest.raises(QueryError, match=f"{chosen.name}: its bytes are not those that were stored"):
            service.answer(Question(f"SELECT * FROM tokens WHERE run = 'run' AND step = {first}"))
        for step in steps:
            if not first <= step <= last:
                assert store.read("export_tokens", run="run", step=step).to_pylist() == before[step]
        chosen.write_bytes(content)
        assert store.read("export_tokens", run="run", step=first).to_pylist() == before[first]


@pytest.mark.parametrize("kind", ["training", "rollout"])
def test_recompute_refuses_flipped_bytes_of_an_object(
    moved: Moved, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    home, share, known, _ = moved
    rebuild(Home(home))
    command = ["recompute", "run", "--home", str(home)]
    chosen = min((share / "run" / kind).iterdir())
    content = chosen.read_bytes()
    for place in range(0, len(content), len(content) // 5):
        chosen.write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])
        assert cli.main(command) == 1
        assert f"{chosen.name}: its bytes are not those that were stored; put it back" in capsys.readouterr().err
        with Store.open(Home(home), read_only=True) as store:
            assert known_numbers(store) == known
    chosen.write_bytes(content)
    assert cli.main(command) == 0
    assert capsys.readouterr().out.startswith(f"{STEPS} steps of run recomputed")
    with Store.open(Home(home), read_only=True) as store:
        assert known_numbers(store) == known


def test_a_part_of_a_large_object_is_compared_alone(tmp_path: Path) -> None:
    content = np.random.default_rng(0).integers(0, 256, 3 * SUMMED + 1000, np.uint8).tobytes()
    file = tmp_path / "object"
    file.write_bytes(content)
    objects, url = ObjectStore(StorageSettings()), file.as_uri()
    objects.expect({url: block_sums(io.BytesIO(content))})
    places = (0, 1, SUMMED - 1, SUMMED, 2 * SUMMED, len(content) - 8, len(content))
    for begin, length in itertools.product(places, (0, 1, 8, SUMMED, 2 * SUMMED + 3)):
        assert objects.read(url, begin, min(length, len(content) - begin)) == content[begin : begin + length]
    file.write_bytes(content[: SUMMED + 5] + b"\0" + content[SUMMED + 6 :])
    assert objects.read(url, 0, SUMMED) == content[:SUMMED]
    for begin, length in ((0, SUMMED + 1), (SUMMED, 1), (2 * SUMMED - 1, 1)):
        with pytest.raises(ObjectStoreError, match="its bytes are not those that were stored"):
            objects.read(url, begin, length)
    assert objects.read(url, 2 * SUMMED, 8) == content[2 * SUMMED : 2 * SUMMED + 8]
    for longer in (content + b"x", content[:-1]):
        file.write_bytes(longer)
        objects._opened.cache_clear()
        with pytest.raises(ObjectStoreError, match="its bytes are not those that were stored"):
            objects.read(url, len(longer) - 8, 8)


def test_a_rebuild_from_an_object_store_by_its_own_protocol(home: Path, server: ObjectServer) -> None:
    with filled(home) as store:
        server.settings(home)
        move(store)
        before = numbers(store)
    lost(home)
    server.settings(home, raw=server.nowhere)
    with pytest.raises(StoreError, match=r"has no such bucket.*repeat the command when the object store answers"):
        rebuild(Home(home))
    server.settings(home)
    done = rebuild(Home(home))
    assert (done.adopted_objects, done.left_objects, done.incomplete) == (2, [], {})
    with Store.open(Home(home)) as store:
        assert numbers(store) == (pytest.approx(before[0], rel=1e-9), before[1])


UNPROVEN = {"damaged": "checksum", "unnamed": "without a checksum", "elsewhere": "of other runs", "gone": None}


def make(fault: str, object_: Path) -> None:
    content = object_.read_bytes()
    object_.unlink()
    if fault == "damaged":
        object_.write_bytes(content[:200] + bytes([content[200] ^ 1]) + content[201:])
    if fault == "unnamed":
        object_.with_name(f"{object_.stem[:-9]}.parquet").write_bytes(content)
    if fault == "elsewhere":
        elsewhere = object_.parents[2] / "elsewhere" / "training"
        elsewhere.mkdir(parents=True)
        (elsewhere / object_.name).write_bytes(content)


def test_an_object_that_is_not_what_it_was_is_left_alone_and_its_steps_are_unknown(
    moved: Moved, tmp_path: Path
) -> None:
    home, share, values, tokens = moved
    object_ = min((share / "run" / "training").iterdir())
    for folder in (home, share):
        shutil.copytree(folder, tmp_path / "kept" / folder.name)
    for fault, words in UNPROVEN.items():
        for folder in (home, share):
            shutil.rmtree(folder)
            shutil.copytree(tmp_path / "kept" / folder.name, folder)
        make(fault, object_)
        objects = contents(share)
        done = rebuild(Home(home))
        assert (done.adopted_objects, done.incomplete) == (3, {"run": [(0, 1)]}), fault
        assert [str(words) in why for why in done.left_objects] == [True] * (words is not None)
        assert contents(share) == objects
        with Store.open(Home(home)) as store:
            found = known_numbers(store)
            assert found == pytest.approx({key: values[key] for key in found}, rel=1e-9)
            assert {step for step, _ in found} == {2, 3, 4, 5}
            readable = [store.read("export_tokens", run="run", step=step).num_rows for step in range(STEPS)]
            assert readable == [0, 0, *[TOKENS] * 4]
    shutil.copy(tmp_path / "kept" / "share" / object_.relative_to(share), object_)
    assert rebuild(Home(home)).adopted_objects == 1
    lost(home)
    assert rebuild(Home(home)).incomplete == {}, "all are there again"
    with Store.open(Home(home)) as store:
        assert numbers(store) == (pytest.approx(values, rel=1e-9), tokens)


@pytest.mark.parametrize("noted", ["steps", "names"])
@pytest.mark.parametrize("kind", ["training", "rollout"])
def test_a_missing_object_makes_the_steps_unknown_that_it_may_hold(moved: Moved, kind: str, noted: str) -> None:
    """One of rollouts, which may be trained on at any time, or one of which an earlier logprobe noted its name only: all that had moved."""
    home, share, values, _ = moved
    note = home / "raw" / "run" / "!moved.json"
    if noted == "names":
        said = json.loads(note.read_text())
        note.write_text(json.dumps({**said, "paths": sorted(said["paths"])}))
    max((share / "run" / kind).iterdir(), key=lambda path: path.stat().st_mtime_ns).unlink()
    unknown = (2, 3) if (kind, noted) == ("training", "steps") else (0, 3)
    done = rebuild(Home(home))
    assert (done.adopted_objects, done.incomplete) == (3, {"run": [unknown]})
    with Store.open(Home(home)) as store:
        found = known_numbers(store)
        assert found == pytest.approx({key: values[key] for key in found}, rel=1e-9)
        assert {step for step, _ in found} == set(range(STEPS)) - set(range(unknown[0], unknown[1] + 1))


def test_the_objects_of_another_home_and_of_a_deleted_run_are_not_taken_in(moved: Moved, tmp_path: Path) -> None:
    home, share, _, _ = moved
    objects = contents(share)
    with filled(tmp_path / "other") as other:
        shutil.copy(home / "logprobe.yaml", other.home.path)
        other.raw.require()
    for _ in range(2):  # with its own store, and with that lost
        done = rebuild(Home(tmp_path / "other"))
        assert done.adopted_objects == 0
        assert ["the objects of another store" in why for why in done.left_objects] == [True]
        lost(tmp_path / "other")
    (share / MARK).rename(tmp_path / "mark")
    done = rebuild(Home(home))
    assert done.adopted_objects == 0
    assert ["objects that this store does not know" in why for why in done.left_objects] == [True]
    (tmp_path / "mark").rename(share / MARK)
    lost(home)
    (home / "raw" / MARK).write_text(
        json.dumps({"store": json.loads((share / MARK).read_text())["store"], "home": str(home)})
    )
    tombstone = Tombstone("run", "2026-01-01T00:00:00Z", "ada")
    Tombstones(Home(home)).change("run", lambda _: tombstone)
    done = rebuild(Home(home))
    assert done.adopted_objects == done.adopted_files == done.sequences == 0
    assert all("was deleted at 2026" in why for why in done.left_objects)
    assert len(done.left_objects) == len(objects)
    assert contents(share) == objects


def test_an_older_store_finds_its_files_in_the_object_store_once(home: Path, tmp_path: Path) -> None:
    """Yesterday's knows them as files on the disk, or as uploads that had just begun."""
    share = tmp_path / "share"
    (Home(home).create().path / "logprobe.yaml").write_text(f"storage:\n  raw: file://{share}\n  after: 0\n")
    with filled(home) as store:
        Retention(store).merge(Retention(store).files())
        for file in Retention(store).files():
            with store.transaction() as cursor:
                store.execute(cursor, "doom_object", url=object_address(f"file://{share}", file))
        store.checkpoint()
        shutil.copy(home / "logprobe.duckdb", tmp_path / "yesterday")
        move(store)
        before = numbers(store)
    lost(home)
    shutil.copy(tmp_path / "yesterday", home / "logprobe.duckdb")
    done = rebuild(Home(home))
    assert (done.adopted_objects, done.sequences, done.forgotten_files, done.left_objects) == (2, 0, 0, [])
    with Store.open(Home(home)) as store:
        assert move(store).removed_objects == 0
        assert numbers(store) == (pytest.approx(before[0], rel=1e-9), before[1])
    assert len(contents(share)) == 2


def test_a_rebuild_that_was_interrupted_is_said_until_it_is_repeated(
    moved: Moved, monkeypatch: pytest.MonkeyPatch
) -> None:
    home, _, values, tokens = moved
    with monkeypatch.context() as patch:
        patch.setattr(Adopter, "adopt", lambda *_: (_ for _ in ()).throw(SegmentError("unreadable", "gone meanwhile")))
        with pytest.raises(SegmentError, match="gone meanwhile"):
            rebuild(Home(home))
    with (
        Store.open(Home(home)) as store,
        pytest.raises(StoreError, match=r"was interrupted.*repeat it: logprobe rebuild"),
    ):
        Ingester(store).run_once()
    assert rebuild(Home(home)).adopted_objects == 4
    with Store.open(Home(home)) as store:
        Ingester(store).run_once()
        assert numbers(store) == (pytest.approx(values, rel=1e-9), tokens)


@pytest.mark.parametrize("run", ["../../evil run", "..", "%2E%2E/x", "a=25/=3D", "object://s3://b"])
def test_names_of_runs_cannot_leave_their_folder(home: Path, server: ObjectServer, tmp_path: Path, run: str) -> None:
    share = tmp_path / "share"
    share.mkdir()
    with Store.open(Home(home)) as store:
        SpoolWriter(home, run, "w").write("training", records("training", trained("a", 0)))
        Ingester(store).run_once()
        (home / "logprobe.yaml").write_text(f"storage: {{raw: 'file://{share}/tokens', after: 0}}\n")
        assert move(store).problem is None
        assert [path.relative_to(share).parts[0] for path in share.rglob("*.parquet")] == ["tokens"]
        assert store.read("export_tokens", run=run, step=0).num_rows == 4


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("raw: http://bucket/x", "raw: .*begins with none of s3://"),
        ("raw: s3://key:secret@bucket/x", "raw: .*credentials"),
        ("raw: s3://bucket/x?secret_key=1", "raw: .*credentials"),
        ("raw: s3:///x", "raw: .*names no bucket"),
        ("raw: file:///mnt/../etc", "raw: .*no place"),
        ("endpoint: minio:9000", "endpoint: .*is not an address like"),
        ("after: -1", "after: "),
        ("secret_key: x", "secret_key: "),
    ],
)
def test_a_wrong_setting_is_named(home: Path, text: str, words: str) -> None:
    with Store.open(Home(home)) as store:
        (home / "logprobe.yaml").write_text(f"storage:\n  {text}\n")
        with pytest.raises(ConfigurationError, match=rf"logprobe\.yaml:2: storage\.{words}"):
            move(store)


def test_a_deleted_run_leaves_no_object_even_if_the_server_is_away_or_an_upload_under_way(
    home_with_steps: Store, server: ObjectServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = home_with_steps
    delete = deletion.part(store, threading.Event()).actions[deletion.DELETE].run
    server.settings(store.home.path)
    move(store)
    server.kill()
    objects = delete({"run": "run", "author": "ada", "force": True})["objects"]
    assert (objects["removed"], objects["waiting"]) == (0, 2)
    assert "does not answer" in objects["problem"]
    server.start()
    assert (move(store).removed_objects, server.objects()) == (2, [])

    delete_released(store)
    write(store, 10, 11, begun=datetime.now(UTC))
    upload = store.objects.put

    def put(path: Path, url: str) -> None:
        upload(path, url)
        assert delete({"run": "run", "author": "ada", "force": True})["rows"]["raw_files"] == 2

    with monkeypatch.context() as patch:
        patch.setattr(store.objects, "put", put)
        assert move(store).stored_files == 0
    move(store)
    assert (server.objects(), raw_paths(store), value(store, "SELECT count(*) FROM doomed_objects")) == ([], [], 0)

    delete_released(store)
    write(store, 20, 21, begun=datetime.now(UTC))
    assert move(store).stored_files == 2
    objects = delete({"run": "run", "author": "ada", "force": True})["objects"]
    assert (objects, server.objects()) == ({"removed": 2, "waiting": 0, "problem": None}, [])


def delete_released(store: Store) -> None:
    """Lets the run's name be used again."""
    deletion.part(store, threading.Event()).actions[deletion.RELEASE].run({"run": "run", "author": "ada"})
