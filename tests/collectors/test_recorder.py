"""The Recorder's public interface: what goes in comes out of the spool; what cannot go in is counted and hurts nobody."""

from __future__ import annotations

import json
import logging
import math
import os
import pickle
import threading
import time
from dataclasses import make_dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
import pytest
import torch
from processes import eventually
from spool_contents import by_sample, health_events, rows, segments

from logprobe.collectors import Recorder
from logprobe.collectors.errors import ConfigurationError
from logprobe.collectors.recorder import batches


def batch(names: str | list[str] = "ab", time: int = 4, **changes) -> dict:
    """Arguments of a `training` call with a padded batch."""
    names = list(names)
    shape = (len(names), time)
    arguments = {
        "step": 1,
        "sample_ids": names,
        "token_ids": np.arange(math.prod(shape)).reshape(shape),
        "trainer_logprobs": np.full(shape, -0.5, np.float32),
        "rollout_logprobs": np.full(shape, -0.25, np.float32),
        "mask": np.ones(shape, bool),
    }
    return {**arguments, **changes}


@pytest.fixture
def recorder(home: Path):
    with Recorder(home, "run", rank=3) as recorder:
        yield recorder


# --- Records ---


def test_training(recorder: Recorder, home: Path):
    before = datetime.now(UTC)
    mask = np.array([[0, 1, 1, 0], [1, 0, 1, 1]])
    assert recorder.training(
        **batch(mask=mask),
        current_logprobs=np.full((2, 4), -0.75),
        entropy=np.full((2, 4), 1.5),
        advantages=[2.0, -1.0],
        rewards=torch.tensor([1.0, 0.0]),
        weight_version=7,
        reference_logprobs=np.full((2, 4), -1.5),
        teacher_logprobs=np.full((2, 4), -1.25),
        rollout_versions=[6, None],
        prompt_ids=["p", "p"],
        tags=[{"environment": "sort"}, None],
    )
    assert recorder.flush()
    found = by_sample(home, "training")
    first, second = found["a"], found["b"]
    assert before <= first.pop("time") <= datetime.now(UTC)
    assert first == {
        "step": 1, "rank": 3, "sample_id": "a", "group_id": "p", "token_ids": [1, 2], "mask": [True, True],
        "rollout_logprobs": [-0.25] * 2, "trainer_logprobs": [-0.5] * 2, "current_logprobs": [-0.75] * 2, "entropy": [1.5] * 2,
        "advantages": [2.0] * 2, "reward": 1.0, "weight_version": "7", "tags": [("environment", "sort")],
        "routes": None, "part_ids": None, "reference_logprobs": [-1.5] * 2, "teacher_logprobs": [-1.25] * 2,
        "rollout_versions": [{"start": 0, "end": 2, "sampled_start": 0, "sampled_end": 2, "version": "6"}],
    }  # fmt: skip
    assert second["mask"] == [True, False, True, True]
    assert second["tags"] is None


def test_calls_with_and_without_an_argument_share_a_segment(recorder: Recorder, home: Path):
    with recorder._runtime.call_queue.at_work:  # its thread takes them together, however long this one is held up
        recorder.training(**batch("a", entropy=np.ones((1, 4))))
        recorder.training(**batch("b", rollout_logprobs=None))
        recorder.training(**batch("c", mask=np.zeros((1, 4)), entropy=np.ones((1, 4))))
    assert recorder.flush()
    found = by_sample(home, "training")
    assert [found[name]["entropy"] for name in "abc"] == [[1.0] * 4, None, []]
    assert [found[name]["rollout_logprobs"] for name in "abc"] == [[-0.25] * 4, None, []]
    assert len([segment for segment in segments(home) if segment.where.kind == "training"]) == 1


def test_broken_numbers_pass_untouched(recorder: Recorder, home: Path):
    odd = np.array([[math.nan, math.inf, -math.inf, -9999.0]], np.float32)
    recorder.training(**batch("a", trainer_logprobs=odd))
    recorder.rollout(sample_ids=["a"], token_ids=[[1, 2, 3]], logprobs=[[math.nan, None, -math.inf]])
    assert recorder.flush()
    assert np.array(by_sample(home, "training")["a"]["trainer_logprobs"], np.float32).tobytes() == odd.tobytes()
    assert repr(by_sample(home, "rollout")["a"]["logprobs"]) == "[nan, None, -inf]"


def test_rollout(recorder: Recorder, home: Path):
    assert recorder.rollout(
        sample_ids=["a", "b", 3],
        token_ids=[[1, 2, 3], [4], []],
        logprobs=[[-1.0, -2.0, -3.0], [-4.0], []],
        weight_version=[[(0, 2, 5), (2, 3, None)], "v6", None],
        cached_prefix_tokens=[16, 0, None],
        prompt_lengths=np.array([20, 21, 22]),
        prompt_hashes=["h", None, "h"],
        finish_reasons=["stop", "length", None],
        sampling={"temperature": 0.7},
        engine_config_id="e",
        request_ids=["cmpl-a", None, None],
        replica="dp0",
    )
    assert recorder.flush()
    found = by_sample(home, "rollout")
    assert found["a"]["spans"] == [{"start": 0, "end": 2, "version": "5"}, {"start": 2, "end": 3, "version": None}]
    assert found["b"]["spans"] == [{"start": 0, "end": 1, "version": "v6"}]
    assert found["3"]["spans"] is None
    assert [found[name]["cached_prefix_tokens"] for name in "ab3"] == [16, 0, None]
    assert [found[name]["prompt_length"] for name in "ab3"] == [20, 21, 22]
    assert found["a"]["replica"] == "dp0"
    assert found["a"]["request_id"] == "cmpl-a"
    (config,) = rows(home, "config")
    assert config["fingerprint"] == found["a"]["sampling_id"]
    assert (config["kind"], json.loads(config["document"])) == ("sampling_params", {"temperature": 0.7})


def test_rollouts_padded_and_packed(recorder: Recorder, home: Path):
    ids, logprobs = torch.tensor([[1, 2, 0], [3, 4, 5]]), torch.tensor([[-1.0, -2.0, 9.0], [-3.0, -4.0, -5.0]])
    sampling = make_dataclass("Sampling", ["temperature"])(0.7)  # no dictionary, and one for all
    assert recorder.rollout(sample_ids=["a", "b"], token_ids=ids, logprobs=logprobs, lengths=[2, 3], sampling=sampling)
    flat = {"token_ids": np.array([1, 2, 3, 4, 5]), "logprobs": np.array([-1.0, -2, -3, -4, -5])}
    assert recorder.rollout(sample_ids=["a2", "b2"], **flat, cu_seqlens=np.array([0, 2, 5]))
    assert recorder.flush()
    found = {name: (row["token_ids"], row["logprobs"]) for name, row in by_sample(home, "rollout").items()}
    assert found["a"] == found["a2"] == ([1, 2], [-1.0, -2.0])
    assert found["b"] == found["b2"] == ([3, 4, 5], [-3.0, -4.0, -5.0])
    assert [json.loads(row["document"]) for row in rows(home, "config")] == [{"temperature": 0.7}]


def test_step(recorder: Recorder, home: Path):
    loss = torch.tensor(0.5, requires_grad=True)
    assert recorder.step(
        4, {"loss": loss, "skipped": None}, learning_rate=np.float32(0.25), time=1.5, correction={"mode": "mis"}
    )
    assert recorder.step(5, grad_norm=math.nan)
    assert recorder.flush()
    first, second = rows(home, "step")
    assert dict(first["scalars"]) == {"loss": 0.5, "learning_rate": 0.25}
    assert (first["step"], first["rank"], json.loads(first["correction"])) == (4, 3, {"mode": "mis"})
    assert first["time"] == datetime.fromtimestamp(1.5, UTC)
    assert math.isnan(dict(second["scalars"])["grad_norm"])


def test_weights(recorder: Recorder, home: Path):
    moment = datetime(2026, 1, 2, 3, 4, 5, 678, tzinfo=UTC)
    assert recorder.weights(
        3, step=9, applied_at=moment, started_at=moment.timestamp() - 1, cache_cleared=False, tensors=12
    )
    assert recorder.weights(None, source="engine", replica="dp1")
    assert recorder.flush()
    first, second = rows(home, "weights")
    assert (first["version"], first["step"], first["source"], first["cache_cleared"]) == ("3", 9, "trainer", False)
    assert first["applied_at"] == moment
    assert (first["applied_at"] - first["started_at"]).total_seconds() == pytest.approx(1, abs=1e-5)
    assert (second["version"], second["source"], second["replica"], second["cache_cleared"]) == (
        None,
        "engine",
        "dp1",
        None,
    )


def test_config_is_written_once_and_has_a_stable_fingerprint(recorder: Recorder, home: Path):
    class Opaque:
        pass

    first = recorder.config({"b": [1, (2,)], "a": Opaque(), "s": {"y", "x"}, 3: math.inf})
    again = recorder.config({3: math.inf, "s": {"x", "y"}, "a": Opaque(), "b": [1, [2]]})
    other = recorder.config({"b": [1, [3]]}, kind="run")
    assert first == again != other
    assert len(first) == 16
    assert recorder.flush()
    assert [row["fingerprint"] for row in rows(home, "config")] == [first, other]
    with Recorder(home, "another") as second:
        assert second.config({"b": [1, [3]]}, kind="run") == other
        document: dict = {}
        document["self"] = document
        assert len(second.config(document)) == 16, "one that refers to itself ends"


@pytest.mark.parametrize("event", ["closed", "started", "heartbeat"])
def test_what_a_recorder_says_of_itself_is_not_said_in_its_name(recorder: Recorder, home: Path, event: str) -> None:
    """A run whose trainer is said to have closed has ended: nobody would miss it."""
    assert recorder.report(event, "the first phase is over", severity="warning") is False
    assert recorder.state(event, "the first phase is over", None) is False
    assert recorder.flush()
    events = health_events(home)
    assert all("first phase" not in row["message"] for found in events.values() for row in found)
    refused = events["bad_input"]
    assert sum(row["count"] for row in refused) == 2
    assert f"event: {event!r} is reserved for the recorder" in refused[0]["message"]


def test_a_warning_is_not_merged_with_an_info_of_the_same_event(
    recorder: Recorder, home: Path, caplog: pytest.LogCaptureFixture
):
    """However close they are: the warning is what people have to read."""
    with recorder._runtime.call_queue.at_work:  # its thread finds all of them at once
        for severity in ("info", "info", "warning", "error"):
            recorder.report("self_test", f"a {severity}", severity=severity)
        recorder.report("self_test", "of another part", component="plugin", details={"hooks": 3}, tokens=5)
    assert recorder.flush()
    said = health_events(home)["self_test"]
    assert sorted((row["severity"], row["message"], row["count"]) for row in said) == [
        ("error", "a error", 1), ("info", "a info", 2), ("info", "of another part", 1), ("warning", "a warning", 1),
    ]  # fmt: skip
    (other,) = (row for row in said if row["component"] == "plugin")
    assert (json.loads(other["details"]), other["tokens"]) == ({"hooks": 3}, 5)
    assert [record.getMessage() for record in caplog.records] == ["logprobe: a warning", "logprobe: a error"]
    assert recorder.health["problems"]["self_test"] == 5


def test_invented_events_are_bounded_and_keep_their_severity(recorder: Recorder, home: Path):
    for number in range(300):
        recorder.report(f"event-{number}", "an info")
    recorder.report("one more", "a warning", severity="warning")
    assert recorder.flush()
    problems = recorder.health["problems"]
    assert (len(problems), problems["other"]) == (256 + 1, 302 - 256)  # with the record "started"
    rows_of = [row for found in health_events(home).values() for row in found]
    assert [row["message"] for row in rows_of if row["severity"] == "warning"] == ["a warning"]


def test_text_that_utf8_cannot_hold_does_not_stop_the_rest(recorder: Recorder, home: Path):
    assert recorder.training(**batch(["\ud800x", "zwölf"], tags={"k\udfff": "v\ud800"}))
    assert recorder.report("odd", "\ud800")
    assert recorder.step(1, {"\ud800": 1.0})
    assert recorder.flush()
    assert set(by_sample(home, "training")) == {"?x", "zwölf"}
    assert rows(home, "step")[0]["scalars"] == [("?", 1.0)]


# --- The host's arrays stay the host's ---


@pytest.mark.parametrize("wrap", [np.asarray, torch.from_numpy])
def test_arrays_may_change_as_soon_as_a_call_returns(recorder: Recorder, home: Path, wrap):
    arguments = batch("abc", time=300)
    arrays = {name: wrap(arguments[name]) for name in ("token_ids", "trainer_logprobs", "rollout_logprobs", "mask")}
    lists = [wrap(np.array([1, 2], np.int64)), wrap(np.array([3], np.int64))]
    tags = {"environment": "before"}
    names = list("abc")
    expected = arguments["token_ids"].copy()
    assert recorder.training(**{**arguments, **arrays, "sample_ids": names}, tags=tags)
    assert recorder.training(step=1, sample_ids=["x", "y"], token_ids=lists, trainer_logprobs=[[-1.0, -1.0], [-1.0]])
    for array in arrays.values():
        array[:] = 0
    for array in lists:
        array[:] = 0
    tags["environment"] = names[0] = "after"
    assert recorder.flush()
    found = by_sample(home, "training")
    assert [found[name]["token_ids"] for name in "abc"] == expected.tolist()
    assert found["a"]["trainer_logprobs"] == [-0.5] * 300
    assert found["a"]["tags"] == [("environment", "before")]
    assert found["x"]["token_ids"] == [1, 2]


# --- Trouble is counted, not raised ---


def with_nan(dtype: Any) -> Any:
    mask = torch.ones((2, 4), dtype=dtype)
    mask[1, 2] = math.nan
    return mask if dtype is torch.bfloat16 else mask.numpy()


LISTS = {"token_ids": [[1, 2], [3, 4]], "trainer_logprobs": [[-1.0, -2.0]] * 2, "rollout_logprobs": [[-1.0, -2.0]] * 2}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"trainer_logprobs": np.zeros((2, 5))}, "trainer_logprobs"),
        ({"trainer_logprobs": None}, "trainer_logprobs"),
        ({"mask": None}, "mask: required"),
        *(({"mask": with_nan(getattr(torch, kind))}, "mask: contains NaN") for kind in ("float16", "float32", "float64", "bfloat16")),
        *((LISTS | {"mask": mask}, "mask") for mask in ([[1, None], [1, 1]], [[1.0, math.nan], [1, 1]], [[1, 1], None])),
        ({"sample_ids": ["only one"]}, "sample_ids"),
        ({"sample_ids": None}, "sample_ids"),
        *(({"sample_ids": ids}, "is None") for ids in ([None, "b"], (None, None), np.array(["a", None], object))),
        ({"token_ids": "text"}, "token_ids"),
        ({"token_ids": object()}, "token_ids: object is not an array of numbers; pass one"),
        (LISTS | {"mask": None, "trainer_logprobs": [[-1.0, object()], [-1.0, -2.0]]}, "trainer_logprobs: list is not an array of numbers; pass one"),
        ({"step": "seven"}, "step"),
        ({"step": None}, "step"),
        ({"rewards": np.zeros(5)}, "rewards"),
        ({"advantages": np.zeros((3, 3))}, "advantages"),
        ({"tags": "text"}, "tags"),
        ({"cu_seqlens": np.array([0, 1, 2])}, "cu_seqlens"),
    ],
)  # fmt: skip
def test_wrong_arguments_are_refused_at_once(recorder: Recorder, home: Path, changes: dict, words: str):
    assert recorder.training(**{**batch(), **changes}) is False
    assert recorder.training(**batch())
    assert recorder.flush()
    assert recorder.health["dropped"] == {"bad_input": {"calls": 1, "sequences": 0, "tokens": 0}}
    assert "Recorder.training" in recorder.health["last_error"]
    assert words in recorder.health["last_error"]
    (event,) = health_events(home)["bad_input"]
    assert (event["count"], event["severity"]) == (1, "warning")
    assert set(by_sample(home, "training")) == {"a", "b"}


@pytest.mark.parametrize("changes", [{"token_ids": np.full((2, 4), 2**40)}, {"rewards": ["good", "bad"]}])
def test_wrong_contents_cost_only_their_call_and_the_flush_after_it(recorder: Recorder, home: Path, changes: dict):
    """The first can be told by the recorder's thread alone."""
    accepted = recorder.training(**{**batch("xy"), **changes})
    assert recorder.flush() is not accepted
    assert recorder.training(**batch())
    assert recorder.flush() is True
    assert recorder.health["dropped"]["bad_input"]["calls"] == 1
    assert set(by_sample(home, "training")) == {"a", "b"}
    assert health_events(home)["bad_input"][0]["step"] == 1


def test_ids_of_a_prompt_are_copied_and_never_wrapped_around(recorder: Recorder, home: Path):
    def rollout(name: str, prompt: object) -> bool:
        return recorder.rollout(
            sample_ids=[name], token_ids=[[1]], logprobs=[[-1.0]], prompt_lengths=[1], prompt_token_ids=[prompt]
        )

    ids = np.array([3, 4], np.int32)
    assert rollout("copied", ids)
    ids[:] = 0
    assert rollout("none", [])
    assert not rollout("wrapped", np.array([2**32 + 7]))
    assert "prompt_token_ids: a value does not fit into 32 bits" in (recorder.health["last_error"] or "")
    recorder.flush()
    found = by_sample(home, "rollout")
    assert {name: row["prompt_token_ids"] for name, row in found.items()} == {"copied": [3, 4], "none": []}


def test_wrong_small_records_cost_only_themselves(recorder: Recorder, home: Path):
    assert not recorder.step(1, loss="high")
    assert not recorder.step(1, loss=torch.zeros(2))
    assert not recorder.weights(1, applied_at=1.7e12 * 1e3)
    recorder.weights(2, cache_cleared="yes")
    assert not recorder.begins(2.5)
    recorder.rollout(sample_ids=["a"], token_ids=[[1]], logprobs=[[-1.0]], weight_version=[[(0, 2, "v")]])
    assert not recorder.rollout(sample_ids=[None], token_ids=[[1]], logprobs=[[-1.0]])
    recorder.rollout(sample_ids=["b"], token_ids=[[1]], logprobs=[[-1.0]], cached_prefix_tokens=[1.5])
    assert not recorder.step(2, loss=1.0, grad_norm="high", tokens=10**400)
    assert recorder.weights(3)
    assert recorder.rollout(sample_ids=["c"], token_ids=[[1]], logprobs=[[-1.0]])
    recorder.flush()
    assert [(row["step"], row["scalars"]) for row in rows(home, "step")] == [(2, [("loss", 1.0)])]
    assert [row["version"] for row in rows(home, "weights")] == ["3"]
    assert set(by_sample(home, "rollout")) == {"c"}
    assert recorder.health["problems"]["bad_input"] == 6
    assert recorder.health["problems"]["bad_scalar"] == 4


def test_repeated_trouble_is_one_warning_with_a_count(
    home: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("logprobe.collectors.health.REPEAT_SECONDS", 3600.0)
    with Recorder(home, "run", flush_interval=0.05) as recorder:
        for _ in range(500):
            recorder.training(**batch(mask=None))
        recorder.flush()
        for _ in range(500):
            recorder.training(**batch(mask=None))
        time.sleep(0.2)
    warnings = [record for record in caplog.records if record.name == "logprobe"]
    assert len(warnings) == 1
    assert warnings[0].levelno == logging.WARNING
    assert "mask: required" in warnings[0].getMessage()
    events = health_events(home)["bad_input"]
    assert len(events) == 2  # at once, and the rest at the latest with the end
    assert sum(event["count"] for event in events) == 1000


def test_bfloat16_logprobs_are_noted_once(recorder: Recorder, home: Path):
    for _ in range(3):
        recorder.training(**batch(trainer_logprobs=torch.zeros(2, 4, dtype=torch.bfloat16)))
    recorder.flush()
    (event,) = health_events(home)["bfloat16_logprobs"]
    assert event["count"] == 1
    assert "keep float32" in event["message"]


def test_nothing_is_accepted_after_close(home: Path):
    recorder = Recorder(home, "run")
    assert recorder.close()
    assert recorder.close()
    assert recorder.training(**batch()) is False
    assert recorder.flush() is True  # of what was accepted, nothing is missing
    assert recorder.health["dropped"]["closed"]["calls"] == 1


def test_a_report_that_cannot_be_said_is_swallowed(recorder: Recorder):
    class Hostile:
        def __repr__(self) -> str:
            raise RuntimeError

        __str__ = __repr__

    assert recorder.report("odd", "message", details=Hostile()) is False
    assert recorder.config(Hostile()) == ""
    assert recorder.health["problems"]["internal_error"] == 2


def test_tensors_on_a_device_that_cannot_be_copied_from_are_refused(recorder: Recorder):
    tensors = {name: torch.empty((2, 4), device="meta") for name in ("trainer_logprobs", "mask")}
    assert recorder.training(**batch(**tensors)) is False
    assert recorder.step(1, loss=torch.empty((), device="meta")) is False
    assert recorder.training(**batch(sample_ids=torch.empty(2, device="meta"))) is False
    assert recorder.training(**batch(step=torch.empty((), device="meta"))) is False
    assert recorder.health["queue"]["bytes"] == 0
    assert recorder.training(**batch())


def test_an_error_of_ours_costs_one_call_and_is_counted(
    recorder: Recorder, home: Path, monkeypatch: pytest.MonkeyPatch
):
    decode = batches.decode

    def fail_for_x(captured):
        if captured.values["sample_ids"] == ["x"]:
            raise RuntimeError("a bug")
        return decode(captured)

    monkeypatch.setattr(batches, "decode", fail_for_x)
    for name in "axb":
        assert recorder.training(**batch(name))
    assert recorder.flush() is False
    assert set(by_sample(home, "training")) == {"a", "b"}
    assert recorder.health["dropped"]["internal_error"]["sequences"] == 1
    assert recorder.health["queue"]["bytes"] == 0
    assert "internal_error" in health_events(home)


def test_keyboard_interrupt_belongs_to_the_host(recorder: Recorder):
    class Interrupting:
        def __array__(self, *args, **kwargs):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        recorder.training(**batch(token_ids=Interrupting()))
    assert recorder.training(**batch())


# --- Life ---


def test_health_records_frame_a_run(home: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("logprobe.collectors.recorder.writer.HEARTBEAT_SECONDS", 0.1)
    began = time.monotonic()
    with Recorder(home, "run", rank=1, component="trainer", flush_interval=0.02) as recorder:
        recorder.training(**batch())
        recorder.training(**batch(mask=None))
        assert recorder.flush()
        health = recorder.health
        eventually(lambda: len(health_events(home)["heartbeat"]) >= 3, "the recorder writes heartbeats")
    assert json.dumps(health)
    assert health["accepted"] == {"calls": 1, "sequences": 2}
    assert (health["written"]["sequences"], health["written"]["tokens"]) == (2, 8)
    assert health["written"]["bytes"] > 0
    assert (health["queue"]["bytes"], health["disk"]) == (0, "ok")
    events = health_events(home)
    started = json.loads(events["started"][0]["details"])
    assert (started["pid"], started["rank"]) == (os.getpid(), 1)
    assert set(started["versions"]) >= {"logprobe", "numpy", "pyarrow", "torch"}
    assert len(events["heartbeat"]) <= (time.monotonic() - began) / 0.1  # never more often than asked for
    assert "accepted" in json.loads(events["heartbeat"][0]["details"])
    closed = json.loads(events["closed"][0]["details"])
    assert closed["written"]["tokens"] == 8
    assert closed["cost"]["calls"] == 2
    assert closed["cost"]["thread_seconds"] > 0


def test_a_return_to_an_earlier_step_is_told_from_a_start(recorder: Recorder, home: Path):
    recorder.begins(1)
    recorder.training(**batch())
    recorder.begins(1)
    recorder.close()
    told = health_events(home)["training_begins"]
    assert [json.loads(row["details"]) for row in told] == [{"rank": 3}, {"rank": 3, "again": True}]


def test_data_is_on_disk_after_the_flush_interval_without_a_flush(home: Path):
    with Recorder(home, "run", flush_interval=0.1) as recorder:
        recorder.training(**batch())
        eventually(lambda: recorder.health["written"]["tokens"], "the call is on disk")
        assert len(by_sample(home, "training")) == 2


def test_segments_are_cut_at_segment_tokens(home: Path):
    with Recorder(home, "run", segment_tokens=100, flush_interval=60) as recorder:
        for start in range(0, 40, 4):
            recorder.training(**batch([f"s{start + n}" for n in range(4)], time=30))
        recorder.rollout(sample_ids=["long"], token_ids=[range(1000)], logprobs=[[-1.0] * 1000])
        assert recorder.flush()
    assert len(by_sample(home, "rollout")["long"]["token_ids"]) == 1000  # one that is longer than a segment
    found = [segment.table for segment in segments(home) if segment.where.kind == "training"]
    assert sum(table.num_rows for table in found) == 40
    assert all(table.num_rows <= 3 * 4 for table in found)  # a slow disk gets larger ones, up to three times


def test_recorders_and_threads_do_not_mix(home: Path):
    recorders = [Recorder(home, run, rank=rank) for run in ("one", "two") for rank in (0, 1)]

    def record(recorder: Recorder, thread: int) -> None:
        for number in range(20):
            name = f"{recorder.writer_id}/{thread}/{number}"
            assert recorder.training(
                **batch([name], step=number, trainer_logprobs=np.full((1, 4), -thread, np.float32))
            )

    threads = [
        threading.Thread(target=record, args=(recorder, thread)) for recorder in recorders for thread in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(recorder.close() for recorder in recorders)
    found = by_sample(home, "training")
    assert len(found) == 4 * 3 * 20
    assert all(row["trainer_logprobs"] == [-float(name.split("/")[1])] * 4 for name, row in found.items())
    for segment in segments(home):
        names = {row["sample_id"].split("/")[0] for row in segment.table.to_pylist() if "sample_id" in row}
        assert names <= {segment.where.writer}
    assert {segment.where.run for segment in segments(home)} == {"one", "two"}


def test_the_thread_of_a_forgotten_recorder_writes_and_ends(home: Path):
    recorder = Recorder(home, "run", flush_interval=60)
    recorder.training(**batch())
    thread = recorder._runtime._thread
    del recorder
    thread.join(90)
    assert not thread.is_alive()
    assert len(by_sample(home, "training")) == 2


@pytest.mark.parametrize("pickler", [pickle, cloudpickle])
def test_a_pickled_recorder_is_a_new_writer_of_the_same_run(home: Path, pickler):
    with Recorder(home, "run", rank=2, replica="r", component="engine", flush_interval=5) as recorder:
        with pickler.loads(pickler.dumps(recorder)) as copy:
            assert copy.writer_id != recorder.writer_id
            assert copy._settings == recorder._settings
            copy.training(**batch("a"))
        recorder.training(**batch("b"))
    assert set(by_sample(home, "training")) == {"a", "b"}


# --- Construction ---


def test_defaults_come_from_the_environment(home: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("LOGPROBE_HOME", str(home))
    monkeypatch.setenv("LOGPROBE_RUN", "from the environment")
    monkeypatch.setenv("RANK", "5")
    with Recorder() as recorder:
        recorder.training(**batch())
    assert {segment.where.run for segment in segments(home)} == {"from the environment"}
    assert rows(home, "training")[0]["rank"] == 5
    with Recorder(rank=6) as recorder:
        recorder.step(1, loss=1.0)
    assert rows(home, "step")[0]["rank"] == 6
    monkeypatch.setenv("RANK", "zero")
    with pytest.raises(ConfigurationError, match="environment variable RANK"):
        Recorder(home, "run")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"home": 7}, "pass a path or the address of a bucket"),
        ({"home": __file__}, "is a file"),
        ({"home": "~no-such-user/home"}, "use an absolute one"),
        ({"run": None}, "LOGPROBE_RUN"),
        ({"run": 7}, "run=7"),
        ({"run": "x" * 300}, "shorten"),
        ({"run": "a\0b"}, "run="),
        ({"run": "\ud800"}, "run="),
        ({"rank": -1}, "rank=-1"),
        ({"rank": "first"}, "rank='first'"),
        ({"flush_interval": 0}, "flush_interval=0"),
        ({"flush_interval": "soon"}, "flush_interval='soon'"),
        ({"flush_interval": math.nan}, "flush_interval=nan"),
        ({"segment_tokens": 0}, "segment_tokens=0"),
        ({"queue_bytes": 10}, "queue_bytes=10"),
        ({"component": "a/b"}, "component='a/b'"),
    ],
)
def test_wrong_construction_raises_at_once_with_the_remedy(tmp_path: Path, arguments: dict, words: str):
    with pytest.raises(ConfigurationError, match=words):
        Recorder(**{"home": tmp_path / "home", "run": "run", **arguments})


def test_without_a_thread_to_spare_construction_raises_nothing_and_later_calls_try_again(
    home: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refuse)
        recorder = Recorder(home, "run")
        assert recorder.step(1, loss=1.0) is False
    assert "nothing is recorded for now" in caplog.text
    with recorder:
        assert recorder.step(2, loss=1.0)
        assert recorder.flush()
    assert [row["step"] for row in rows(home, "step")] == [2]


def test_a_home_that_cannot_be_looked_at_does_not_stop_the_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def stale(_: Path) -> bool:
        raise OSError(116, "Stale file handle")

    with monkeypatch.context() as patched:
        patched.setattr(Path, "exists", stale)
        recorder = Recorder(tmp_path / "home", "run")
    with recorder:
        assert recorder.step(1, loss=1.0)
        assert recorder.flush()
