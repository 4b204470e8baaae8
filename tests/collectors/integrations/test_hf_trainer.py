"""Checkpoints in the folder of a Hugging Face trainer; `make campaign NAME=trl` and `make campaign NAME=ms_swift` have real trainings save and delete them."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
from spool_contents import health_events, rows

from logprobe.collectors.integrations.hf_trainer import Session
from logprobe.collectors.recorder.recorder import Recorder


class Training:
    """Calls a session as a trainer does: after the folder of a step was written, and old ones were deleted."""

    def __init__(self, home: Path, out: Path, begins: int = 0, *, first: bool = True) -> None:
        self.recorder = Recorder(home=home, run="run")
        self.session = Session(self.recorder)
        self.settings = SimpleNamespace(output_dir=str(out))
        self.state = SimpleNamespace(global_step=begins, is_world_process_zero=first)
        self.out = out
        self.session.on_train_begin(self.settings, self.state)

    def save(self, step: int, *deleted: int) -> None:
        (self.out / f"checkpoint-{step}").mkdir(parents=True)
        for old in deleted:
            (self.out / f"checkpoint-{old}").rmdir()
        self.state.global_step = step
        self.session.on_save(self.settings, self.state)

    def end(self) -> None:
        self.session.on_train_end(self.settings, self.state)
        self.recorder.close()


def named(home: Path) -> list[tuple[int, str | None, bool]]:
    found = [json.loads(row["document"]) for row in rows(home, "config") if row["kind"] == "checkpoint"]
    return [(each["step"], each["checkpoint"], each["deleted"]) for each in sorted(found, key=lambda each: each["at"])]


def test_what_is_saved_and_what_is_deleted_for_it(home: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    training = Training(home, out)
    training.save(2)
    training.save(4)
    (out / "checkpoint-best").mkdir()  # somebody's own
    training.save(6, 2)
    (out / "checkpoint-4").rmdir()  # at the end, as with `load_best_model_at_end`
    training.end()
    folders = {step: str(out / f"checkpoint-{step}") for step in (2, 4, 6)}
    saved = [(step, folders[step], False) for step in (2, 4)]
    assert named(home)[:2] == saved
    assert set(named(home)[2:4]) == {(6, folders[6], False), (2, None, True)}
    assert named(home)[4:] == [(4, None, True)]
    assert "internal_error" not in health_events(home)


def test_one_that_a_run_goes_on_from_is_named_and_others_are_only_missed(home: Path, tmp_path: Path) -> None:
    """Checkpoints that lie in the folder may be of another training."""
    out = tmp_path / "out"
    for step in (2, 4, 90):
        (out / f"checkpoint-{step}").mkdir(parents=True)
    training = Training(home, out, begins=4)
    training.save(6, 2)
    training.end()
    assert [(step, deleted) for step, _, deleted in named(home) if step != 2] == [(4, False), (6, False)]
    assert (2, None, True) in named(home)


@pytest.mark.parametrize("place", ["a folder for each trial", "a file", None])
def test_a_folder_that_has_no_checkpoint_or_cannot_be_read_ends_no_training(
    home: Path, tmp_path: Path, place: str | None
) -> None:
    """A search of hyperparameters saves elsewhere."""
    out = tmp_path / "out"
    if place == "a file":
        out.write_text("")
    training = Training(home, out)
    training.settings.output_dir = str(out) if place else None
    training.state.global_step = 3
    training.session.on_save(training.settings, training.state)
    training.end()
    assert named(home) == [(3, None, False)]


def test_one_rank_says_it(home: Path, tmp_path: Path) -> None:
    training = Training(home, tmp_path / "out", first=False)
    training.save(2)
    training.end()
    assert named(home) == []


def test_a_trainer_without_what_is_looked_for_goes_on(home: Path, tmp_path: Path) -> None:
    """A renamed attribute costs what hangs on it, and a health record says so; it ends no training."""
    training, nothing = Training(home, tmp_path / "out"), object()
    training.session.on_train_begin(nothing, nothing)
    training.session.on_save(nothing, nothing)
    training.session.on_train_end(nothing, nothing)
    training.end()
    assert "internal_error" in health_events(home)
