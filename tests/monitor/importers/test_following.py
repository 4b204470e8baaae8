"""Following folders that are being written: complete pieces, each once, over kill -9 of the writer and of the follower."""

import json
import subprocess
import sys
import threading
import time
from collections import Counter
from contextlib import contextmanager
from pathlib import Path

import forked
import pytest
import torch
from framework_writers import SEQUENCES, WRITERS
from importing_files import generic_row, slime_rollout, write_lines
from processes import eventually

from logprobe.app.cli import main
from logprobe.app.commands.import_ import follow
from logprobe.monitor.home import Home
from logprobe.monitor.importers.following import Follower, Pace, Status, listing
from logprobe.monitor.importers.formats import named
from logprobe.monitor.importers.source import json_lines
from logprobe.monitor.reader import open_reader

PROGRAMS = Path(__file__).parents[2] / "support"
QUICK = Pace(look=0.05, again=0.05, quiet=0.2, broken=1.0)
PATIENCE = 240


def rows(home, sql):
    with open_reader(home) as reader:
        return reader.query(sql).to_pylist()


def program(name, *arguments, **options):
    return forked.Popen([sys.executable, str(PROGRAMS / name), *map(str, arguments)], text=True, **options)


class Heard:
    """A following process, and what it said last."""

    def __init__(self, home, form, path):
        self.process = program("following_program.py", home, form, path, "r", stdout=subprocess.PIPE)
        self.lines, self.units, self.status = 0, 0, {}
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()

    def _listen(self):
        for line in self.process.stdout:
            self.status = json.loads(line)
            self.units = max(self.units, self.status["units"])
            self.lines += 1

    def until(self, condition):
        deadline = time.monotonic() + PATIENCE
        while not condition(self):
            assert time.monotonic() < deadline, self.status
            assert self.process.poll() is None
            time.sleep(0.02)

    def kill(self):
        self.process.kill()
        self.process.wait(90)
        self._thread.join(90)
        self.process.stdout.close()

    def stop(self):
        self.process.terminate()
        assert self.process.wait(PATIENCE) == 0
        self._thread.join(90)
        self.process.stdout.close()


KIND = {"slime": "rollout_sequences"}


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "form", [pytest.param(form, marks=[] if form == "nemo-rl" else pytest.mark.long) for form in WRITERS]
)
def test_each_piece_once_over_kills_of_both_sides(tmp_path, form):
    """Files written as the framework's code does; the writer is killed in a step and resumes after it, the follower twice."""
    home, place = tmp_path / "home", tmp_path / "out"
    writer = program("framework_writers.py", form, place, 0, 1000, 1.0, stdout=subprocess.PIPE)
    follower = Heard(home, form, place)
    follower.until(lambda heard: heard.units >= SEQUENCES)
    follower.kill()
    follower = Heard(home, form, place)
    follower.until(lambda heard: heard.units >= SEQUENCES)
    writer.kill()
    last = int(["-1", *writer.communicate()[0].split()][-1])  # whole; the next may be torn
    follower.kill()
    writer = program("framework_writers.py", form, place, last + 2, last + 5, 0.2, stdout=subprocess.DEVNULL)
    follower = Heard(home, form, place)
    assert writer.wait(PATIENCE) == 0
    follower.until(lambda heard: heard.status.get("state") == "following" and _quiet(heard))
    follower.stop()
    assert main(["ingest", "--once", "--home", str(home)]) == 0
    found = rows(home, "SELECT step, sample_id, count(*) AS n FROM training_sequences GROUP BY step, sample_id")
    assert {row["n"] for row in found} == {1}
    per_step = Counter(row["step"] for row in found)
    whole = [*range(last + 1), *range(last + 2, last + 5)]
    assert {step: per_step[step] for step in whole} == dict.fromkeys(whole, SEQUENCES)
    assert per_step.get(last + 1, 0) <= SEQUENCES  # torn: what was whole in it


def _quiet(heard):
    """It has looked for some seconds, and nothing came and nothing waits but what the killed writer tore."""
    before, lines = heard.units, heard.lines
    heard.until(lambda heard: heard.lines >= lines + 4)
    return heard.units == before and heard.status["waiting"] + heard.status["broken"] <= 2


@contextmanager
def following(home, form, root):
    """A follower in a thread; yields its status."""
    with open_reader_of(home) as reader:
        follower = Follower(Home(home).create(), "r", named(form), root, reader, pace=QUICK)
    stop, seen = threading.Event(), threading.Event()
    thread = threading.Thread(target=follower.run, args=(stop, lambda _: seen.set(), lambda: None))
    thread.start()
    try:
        yield follower
    finally:
        stop.set()
        thread.join(90)
        main(["ingest", "--once", "--home", str(home)])


def open_reader_of(home):
    Home(home).create()
    main(["ingest", "--once", "--home", str(home)])
    return open_reader(home)


def test_what_is_torn_waits_then_shows_and_is_taken_when_it_is_whole(tmp_path):
    home, place = tmp_path / "home", tmp_path / "out"
    place.mkdir()
    torch.save(slime_rollout(1, 2), place / "rollout_1.pt")
    whole = (place / "rollout_1.pt").read_bytes()
    (place / "rollout_2.pt").write_bytes(whole[: len(whole) // 2])
    with following(home, "slime", place) as follower:
        eventually(lambda: follower.status.broken == 1 and follower.status.units == 2)
        status = follower.status
        assert "rollout_2.pt: " in status.shown[0]
        torch.save(slime_rollout(2, 3), place / "next.tmp")
        (place / "next.tmp").replace(place / "rollout_2.pt")
        eventually(lambda: follower.status.units == 5 and not follower.status.broken)
    assert rows(home, "SELECT message FROM health_records WHERE event = 'import_broken'")[0]["message"].startswith(
        "rollout_2.pt"
    )


def test_a_growing_file(tmp_path):
    """Half a line waits; zeros, as network file systems show them before the data, wait; what was read must stay as it was."""
    home, path = tmp_path / "home", tmp_path / "in.jsonl"
    lines = [json.dumps(generic_row(1, str(number))) + "\n" for number in range(4)]
    path.write_text(lines[0] + lines[1][:30])
    with following(home, "jsonl", path) as follower:
        eventually(lambda: follower.status.units == 1)
        with path.open("a") as file:
            file.write(lines[1][30:])
        eventually(lambda: follower.status.units == 2 and not follower.status.waiting)
        size = path.stat().st_size
        with path.open("ab") as file:
            file.write(b"\0" * len(lines[2]))
        eventually(lambda: follower.status.waiting + follower.status.broken == 1)  # broken: it has waited for a second
        with path.open("r+b") as file:
            file.seek(size)
            file.write(lines[2].encode())
        eventually(lambda: follower.status.units == 3)
    assert sorted(row["sample_id"] for row in rows(home, "SELECT sample_id FROM sequences")) == ["0", "1", "2"]
    assert not rows(home, "SELECT 1 FROM health_records WHERE event = 'import_bad_rows'")


def test_a_follower_started_again_opens_only_what_changed(tmp_path, monkeypatch):
    home, place = tmp_path / "home", tmp_path / "out"
    for number in range(30):
        write_lines(place / f"{number}.jsonl", [generic_row(number, "a")])
    with following(home, "jsonl", place) as follower:
        eventually(lambda: follower.status.units == 30)
    opened = []
    with (place / "7.jsonl").open("a") as file:
        file.write(json.dumps(generic_row(7, "b")) + "\n")
    take = Follower._take
    monkeypatch.setattr(
        Follower, "_take", lambda self, path, *rest: (opened.append(path.name), take(self, path, *rest))
    )
    with following(home, "jsonl", place) as follower:
        eventually(lambda: follower.status.units == 1)
    assert set(opened) == {"7.jsonl"}
    assert rows(home, "SELECT count(*) AS n, count(DISTINCT (step, sample_id)) AS ids FROM sequences") == [
        {"n": 31, "ids": 31}
    ]


def test_a_rewritten_file_is_left_out_and_shown(tmp_path, capsys):
    """As after a resume from a checkpoint: the same step comes with other content."""
    home, place = tmp_path / "home", tmp_path / "out"
    write_lines(place / "a.jsonl", [generic_row(1, "first")])
    heard = []
    stop = threading.Event()

    def tell(status: Status) -> None:
        heard.append(status.document())
        if status.units and len(heard) < 1000 and not rewritten:
            rewritten.append(write_lines(place / "a.jsonl", [generic_row(1, "other"), generic_row(1, "more")]))
        if status.broken:
            stop.set()

    rewritten = []
    loop_until(home, place, stop, tell)
    assert "have changed since they were imported" in heard[-1]["shown"][0]
    main(["ingest", "--once", "--home", str(home)])
    assert [row["sample_id"] for row in rows(home, "SELECT sample_id FROM sequences")] == ["first"]
    main(["status", "r", "--home", str(home)])
    assert "have changed since they were imported" in capsys.readouterr().out


def loop_until(home, place, stop, tell):
    """`logprobe import --follow` in this process, until `stop`."""
    from logprobe.app.commands import import_ as module

    @contextmanager
    def stopping():
        yield stop

    original, sentences = module.stop_on_signals, module._sentences
    module.stop_on_signals, module._sentences = stopping, lambda _: tell
    try:
        assert follow(Home(home), named("jsonl"), place, "r", json=False, pace=QUICK) == 0
    finally:
        module.stop_on_signals, module._sentences = original, sentences


def test_thousands_of_files_cost_little(tmp_path):
    """Memory per file, and the share of a processor that listing takes."""
    place = tmp_path / "out"
    for number in range(3000):
        folder = place / f"step_{number // 3}"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"rank_{number % 3}.jsonl").touch()
    begun = time.process_time()
    found = listing(place, ("rank_*.jsonl",), without=tmp_path)
    seconds = time.process_time() - begun
    assert len(found.files) == 3000
    assert not found.problems
    pace = Pace()
    assert seconds / (seconds + max(pace.look, pace.share * seconds)) <= 0.05


def test_lines_continue_after_one_without_an_end(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"a": 1}')
    first = list(json_lines(path))
    with path.open("a") as file:
        file.write('\n{"a": 2}\n')
    assert [unit.value for unit in json_lines(path, first[-1].end)] == [{"a": 2}]
    assert list(json_lines(path, first[-1].end, ended=False))[-1].end == path.stat().st_size


def test_killed_in_the_middle_of_a_piece(tmp_path):
    """kill -9 between a marker and its rows: the next follower writes them, and only them."""
    from importing_files import import_until_killed

    home, path = tmp_path / "home", tmp_path / "in.jsonl"
    write_lines(path, [generic_row(1 + i // 200, str(i)) for i in range(600)])
    import_until_killed(home, "jsonl", path, 3)  # a whole piece and the next one's marker
    with following(home, "jsonl", path) as follower:
        eventually(lambda: follower.status.units == 600 - 512)
    found = rows(home, "SELECT count(*) AS n, count(DISTINCT sample_id) AS ids FROM sequences")
    assert found == [{"n": 600, "ids": 600}]
