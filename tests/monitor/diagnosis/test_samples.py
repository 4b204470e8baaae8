"""Raw tokens that are kept from one diagnosis to the next: what is new is read, and nothing outlives what corrects it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from recorded_home import take_in
from segments import RUN, Clock, at, records, sampled, trained
from store_work import bring_in, freeze

from logprobe.collectors.errors import QueryError
from logprobe.collectors.spool.segments import SpoolWriter
from logprobe.monitor.judging import gather as gathering
from logprobe.monitor.judging.gather import gather
from logprobe.monitor.judging.samples import Samples
from logprobe.monitor.service.deleting import forget
from logprobe.monitor.store import archive
from logprobe.monitor.store import retention as retention_module
from logprobe.monitor.store.retention import Retention, RetentionPolicy
from logprobe.monitor.store.store import Store

EACH = 4  # sequences of a step
N = 4  # tokens of a sequence
STEPS = 5


class Reads:
    """A source that notes of which steps raw tokens were read."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.steps: list[list[int]] = []

    def read(self, name: str, /, **params: Any) -> pa.Table:
        if name == "diagnosis_tokens":
            self.steps.append(list(params["steps"]))
        return self._store.read(name, **params)


class Run:
    """A run whose sample is kept, and compared with one that is read again."""

    def __init__(self, store: Store, samples: Samples | None = None, name: str = RUN) -> None:
        self.store, self.name = store, name
        self.samples = samples or Samples()

    def records(
        self, *steps: int, trainer: bool = True, engine: bool = True, version: str | None = None, writer: str = "w"
    ) -> None:
        """What one process of each side records of these steps, ingested and joined."""
        spool = SpoolWriter(self.store.home.path, self.name, writer)
        names = [(step, f"{step}-{answer}") for step in steps for answer in range(EACH)]
        if trainer:
            rows = [
                trained(name, step, N, received=False, group_id=f"g{step}", weight_version=str(step))
                for step, name in names
            ]
            spool.write("training", records("training", *rows))
        if engine:
            logprobs = [-0.5 * (place + 1) for place in range(N)]
            rows = [
                sampled(name, N, version=version or str(step), logprobs=logprobs, replica="a") for step, name in names
            ]
            spool.write("rollout", records("rollout", *rows))
        take_in(self.store)

    def says(self, writer: str, event: str, seconds: float, step: int | None = None) -> None:
        """What a trainer's process says of itself."""
        row = {"time": at(seconds), "component": "recorder", "event": event, "severity": "info", "message": ""}
        row |= {"count": 1, "step": step, "details": '{"rank": 0}'}
        SpoolWriter(self.store.home.path, self.name, writer).write("health", records("health", row))

    def looks(self) -> list[int]:
        """The steps that were read for a diagnosis, whose sample must be that of one without any memory."""
        reads = Reads(self.store)
        kept, fresh = gather(reads, self.name, samples=self.samples).recorded, gather(self.store, self.name).recorded
        assert (kept is None) == (fresh is None)
        if kept is not None and fresh is not None:
            for field in dataclasses.fields(fresh):
                np.testing.assert_array_equal(getattr(kept, field.name), getattr(fresh, field.name), err_msg=field.name)
        return [step for steps in reads.steps for step in steps]


@pytest.fixture
def run(store: Store) -> Run:
    made = Run(store)
    made.records(*range(STEPS))
    assert made.looks() == list(range(STEPS))
    return made


def test_only_what_is_new_is_read(run: Run) -> None:
    assert run.looks() == []
    run.records(STEPS)
    assert run.looks() == [STEPS]
    run.records(STEPS + 2, STEPS + 3)
    assert run.looks() == [STEPS + 2, STEPS + 3]
    run.records(STEPS + 1)  # it takes its place
    assert run.looks() == [STEPS + 1]
    assert run.looks() == []


def test_sequences_and_records_of_the_engine_that_come_late(run: Run) -> None:
    spool = SpoolWriter(run.store.home.path, RUN, "late")
    spool.write("training", records("training", trained("late", 2, N, group_id="g2")))
    run.records(STEPS, engine=False)
    assert run.looks() == [2]  # the newest has nothing to be compared with, yet
    run.records(STEPS, trainer=False)
    assert run.looks() == [STEPS]
    assert not np.isnan(gather(run.store, RUN, samples=run.samples).recorded.r).any()


def test_marks_that_correct_the_versions_of_sampled_tokens(run: Run) -> None:
    run.records(STEPS, version="wrong")
    run.looks()
    with run.store.transaction() as cursor:  # as `versions_correct` does
        cursor.execute(
            """UPDATE rollout_sequences SET spans = [{'start': 0, 'end': 4, 'version': '5'}]
               WHERE list_contains(list_transform(spans, lambda s: s.version), 'wrong')"""
        )
    assert run.looks() == [STEPS]
    assert set(gather(run.store, RUN, samples=run.samples).recorded.lag.tolist()) == {0.0}


def test_what_is_said_of_versions_is_no_part_of_what_is_kept(store: Store) -> None:
    run = Run(store)
    run.records(*range(STEPS), version="a label")
    run.looks()
    spool = SpoolWriter(store.home.path, RUN, "marks")
    marks = [
        {"time": at(-9 + i), "version": label, "source": "trainer"}
        for i, label in enumerate(["a label", *map(str, range(STEPS))])
    ]
    spool.write("weights", records("weights", *marks))
    take_in(store)
    run.looks()
    assert not np.isnan(gather(store, RUN, samples=run.samples).recorded.lag).any()


def test_steps_that_a_resumed_run_trains_again(store: Store) -> None:
    """The older attempt's sequences count no more."""
    run = Run(store)
    run.says("w", "started", 0)
    run.records(*range(STEPS))
    run.looks()
    run.says("b", "started", 100)
    run.says("b", "training_begins", 101, 3)
    rows = [trained(f"again-{i}", 3, N, time=at(102), group_id="again") for i in range(EACH + 1)]
    SpoolWriter(store.home.path, RUN, "b").write("training", records("training", *rows))
    take_in(store)
    assert run.looks() == [3]
    assert (gather(store, RUN, samples=run.samples).recorded.step == 3).sum() == (EACH + 1) * N


def test_raw_tokens_that_were_removed(run: Run) -> None:
    assert gather(run.store, RUN, samples=run.samples).recorded is not None
    Retention(run.store, RetentionPolicy(max_bytes=0)).run_once()
    run.looks()
    assert gather(run.store, RUN, samples=run.samples).recorded is None


def test_the_engines_raw_tokens_alone_that_were_removed(store: Store) -> None:
    run = Run(store)
    run.records(*range(STEPS))
    run.looks()
    files = Retention(store).files()
    store.archive.reduce(RUN, "rollout", [file.path for file in files if file.kind == "rollout"])  # as by age
    run.looks()
    assert np.isnan(gather(store, RUN, samples=run.samples).recorded.r).all()


def test_files_that_were_merged(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (archive, retention_module):
        monkeypatch.setattr(module, "SMALL_FILES", 2)
    run.records(STEPS)
    run.looks()
    retention = Retention(run.store)
    before = {file.path for file in retention.files()}
    retention.run_once()
    assert before != {file.path for file in retention.files()}
    run.looks()
    assert run.looks() == []


def test_a_file_that_is_damaged_or_that_somebody_removed_and_put_back(run: Run) -> None:
    files = [run.store.home.path / file.path for file in Retention(run.store).files() if file.kind == "training"]
    content = files[0].read_bytes()
    files[0].write_bytes(content[:-40] + bytes(40))
    for samples in (run.samples, None):
        with pytest.raises(QueryError, match="raw tokens cannot be read"):
            gather(run.store, RUN, samples=samples)
    files[0].write_bytes(content)
    run.looks()
    files[0].unlink()
    run.looks()
    assert gather(run.store, RUN, samples=run.samples).recorded is None
    files[0].write_bytes(content)
    run.looks()
    assert gather(run.store, RUN, samples=run.samples).recorded is not None


def test_frozen_steps_have_no_sequences_any_more(run: Run) -> None:
    bring_in(run.store)
    assert freeze(run.store, protected=2).steps
    run.looks()
    assert min(gather(run.store, RUN, samples=run.samples).recorded.step) == STEPS - 2


def test_a_run_that_was_forgotten_and_recorded_again(run: Run) -> None:
    forget(run.store, RUN)  # as a new index does
    run.records(*range(3), writer="again")
    assert run.looks() == [0, 1, 2]


def test_a_larger_run_is_cut_into_other_parts(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gathering, "SAMPLE_TOKENS", STEPS * EACH * N // 2)
    run.looks()
    monkeypatch.setattr(gathering, "SAMPLE_TOKENS", STEPS * EACH * N)
    assert run.looks() == list(range(STEPS))


def test_a_window_of_steps(run: Run) -> None:
    for steps in ((2, 4), (None, None), (3, None)):
        kept, fresh = (gather(run.store, RUN, steps=steps, samples=of).recorded for of in (run.samples, None))
        np.testing.assert_array_equal(kept.step, fresh.step)
        np.testing.assert_array_equal(kept.r, fresh.r)


@pytest.fixture
def several(store: Store) -> Callable[..., Sequence[Run]]:
    def made(number: int, samples: Samples) -> Sequence[Run]:
        runs = [Run(store, samples, f"run-{index}") for index in range(number)]
        for each in runs:
            each.records(*range(STEPS))
        return runs

    return made


def test_the_first_run_past_the_bound_is_read_each_time(several: Callable[..., Sequence[Run]]) -> None:
    clock = Clock()
    probe = Samples()
    (one,) = several(1, probe)
    one.looks()
    size = probe.nbytes
    samples = Samples(2 * size + size // 2, clock=clock)
    first, second, third = several(3, samples)
    for each in (first, second, third):
        assert each.looks() == list(range(STEPS))
    assert samples.nbytes == 2 * size
    assert (first.looks(), second.looks(), third.looks()) == ([], [], list(range(STEPS)))
    clock.seconds += 599
    first.looks()
    third.looks()
    clock.seconds += 2  # the second was not diagnosed for ten minutes
    assert third.looks() == list(range(STEPS))
    assert (third.looks(), first.looks()) == ([], [])
    assert samples.nbytes <= 2 * size + size // 2


def test_a_run_that_outgrows_the_bound_is_not_kept(several: Callable[..., Sequence[Run]]) -> None:
    probe = Samples()
    (run,) = several(1, probe)
    run.looks()
    run.samples = samples = Samples(probe.nbytes)
    run.looks()
    assert run.looks() == []
    run.records(STEPS)
    assert run.looks() == [STEPS]
    assert samples.nbytes == 0
    assert run.looks() == list(range(STEPS + 1))
