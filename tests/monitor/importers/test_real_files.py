"""Files made by the frameworks' own writers: every step with its number, once, also when the import is killed in the middle."""

import json
import struct
import subprocess
import sys
from pathlib import Path

import pytest
from importing_files import import_until_killed
from real_logs import loss

from logprobe.app.cli import main
from logprobe.monitor.importers import wandb_files
from logprobe.monitor.importers.source import Place
from logprobe.monitor.reader import open_reader

STEPS = 300  # pieces are of 256
PROGRAM = Path(__file__).resolve().parents[2] / "support" / "real_logs.py"
KINDS = ("wandb", "tensorboard", "scalars")


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """Folders with the files of each kind, written by the real writers, all at once."""
    folder = tmp_path_factory.mktemp("real")
    processes = [
        subprocess.Popen([sys.executable, "-W", "ignore", str(PROGRAM), kind, str(folder / kind), str(STEPS)])
        for kind in (*KINDS, "trainer_wandb")
    ]
    assert [process.wait(180) for process in processes] == [0, 0, 0, 0]
    return folder


def import_(home, form, path, capsys):
    assert main(["import", form, str(path), "--run", "r", "--home", str(home), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def scalars(home, name):
    sql = "SELECT step, value FROM scalars WHERE name = $name ORDER BY step"
    with open_reader(home) as reader:
        return [(row["step"], row["value"]) for row in reader.query(sql, {"name": name}).to_pylist()]


@pytest.mark.parametrize("kind", KINDS)
def test_every_step_once_also_after_a_kill_in_the_middle(written, tmp_path, capsys, kind):
    home = tmp_path / "home"
    import_until_killed(home, kind, written / kind, 2)
    report = import_(home, kind, written / kind, capsys)
    assert (report["bad_units"], report["files"]) == (0, 1)
    assert scalars(home, "loss") == [(step, loss(step)) for step in range(1, STEPS + 1)]
    if kind == "wandb":  # what makes it so is the same for all
        assert import_(home, kind, written / kind, capsys)["rows"] == {}
    other = {"wandb": "inner.k3", "tensorboard": "tensor", "scalars": None}[kind]
    if other:
        assert scalars(home, other) == [(step, 0.5) for step in range(1, STEPS + 1)]


def test_a_run_of_a_trainer_has_the_steps_that_it_states(written, tmp_path, capsys):
    """W&B's own step counts calls of `log`, of which a trainer makes several per step."""
    import_(tmp_path / "home", "wandb", written / "trainer_wandb", capsys)
    assert scalars(tmp_path / "home", "train/loss") == [(step, loss(step)) for step in range(1, STEPS + 1)]
    assert scalars(tmp_path / "home", "profiling/time") == [(step, 0.5) for step in range(1, STEPS + 1)]
    assert scalars(tmp_path / "home", "train/global_step") == []


def wandb_file(written):
    return next((written / "wandb").rglob("*.wandb"))


def steps(path):
    place = Place(path, path.name, 0)
    return [row["step"] for unit in wandb_files.records(path) if unit.error is None for _, row in wandb_files.history(unit.value, place)]  # fmt: skip


def test_a_wandb_file_that_still_grows_has_the_steps_that_are_whole(written, tmp_path):
    content, path = wandb_file(written).read_bytes(), tmp_path / "run-real.wandb"
    before = []
    for end in range(7, len(content), len(content) // 12):
        path.write_bytes(content[:end])
        found = steps(path)
        assert found == list(range(1, len(found) + 1))
        assert not any(unit.error for unit in wandb_files.records(path))
        assert len(found) >= len(before)
        before = found
    path.write_bytes(content)
    assert steps(path) == list(wandb_files.steps(path)) == list(range(1, STEPS + 1))


def test_a_damaged_byte_costs_its_block_and_is_said(written, tmp_path):
    content, path = bytearray(wandb_file(written).read_bytes()), tmp_path / "run-real.wandb"
    content[3 * 32_768 + 1000] ^= 0xFF
    path.write_bytes(content)
    assert sum(unit.error is not None for unit in wandb_files.records(path)) == 1
    found = steps(path)
    assert 0 < len(found) < STEPS
    assert found == sorted(set(found))
    assert found[-1] == STEPS


def test_typed_values_of_newer_files_are_read_too(tmp_path):
    path = tmp_path / "run.wandb"

    def field(number, content):
        return bytes([number << 3 | 2, len(content)]) + content

    items = field(1, field(1, b"count") + b"\x28\x07") + field(1, field(1, b"loss") + b"\x31" + struct.pack("<d", 0.25))
    value = items + field(2, b"\x08\x05")
    assert list(wandb_files.history(value, Place(path, "run.wandb", 0))) == [
        ("step", {"step": 5, "time": None, "scalars": [("count", 7.0), ("loss", 0.25)]})
    ]


def test_what_is_no_file_of_wandb_is_refused_in_one_line(tmp_path, capsys):
    (tmp_path / "x.wandb").write_bytes(b"something else")
    assert main(["import", "wandb", str(tmp_path), "--run", "r", "--home", str(tmp_path / "home")]) == 1
    assert "not a run-<id>.wandb" in capsys.readouterr().err
