"""What adapters share: looking at a framework's methods without the framework noticing."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from spool_contents import health_events, rows

from logprobe.collectors import Recorder
from logprobe.collectors.integrations import ms_swift
from logprobe.collectors.integrations.wrapping import WATCHED, Wrapper, missing_keys, unknown_methods


class Host:
    def double(self, number: int, *, times: int = 1) -> int:
        if number < 0:
            raise ValueError("negative")
        return 2 * number * times


def test_what_fails_in_our_part_is_counted_and_the_host_goes_on(home: Path) -> None:
    host = Host()

    def fail(*_: Any, **__: Any) -> None:
        raise RuntimeError("ours")

    with Recorder(home, "run") as recorder:
        wrapper = Wrapper(recorder, "host")
        wrapper.after(host, "double", fail)
        wrapper.around(host, "double", fail, fail)
        assert host.double(3, times=2) == 12
        with pytest.raises(ValueError, match="negative"):
            host.double(-1)
        assert recorder.health["dropped"]["internal_error"]["calls"] == 4


def test_arguments_by_name_reach_the_host_once(home: Path) -> None:
    """A wrapper that names other arguments must not hand one over twice, however the framework passed it."""
    host = Host()
    with Recorder(home, "run") as recorder:
        Wrapper(recorder, "host").around(host, "double", lambda number: (number + 1,), lambda *_: None)
        assert host.double(3) == host.double(number=3) == 8
        assert host.double(number=3, times=2) == 16


@pytest.mark.parametrize(
    ("template", "words"),
    [
        (SimpleNamespace(padding_free=True, sequence_parallel_size=1), "padding_free"),
        (SimpleNamespace(padding_free=False, sequence_parallel_size=2), "sequence parallelism"),
    ],
)
def test_ms_swifts_other_layouts_are_left_alone_and_said(home: Path, template: Any, words: str) -> None:
    """A stand-in with ms-swift's method names; `make campaign NAME=frameworks` trains with ms-swift itself."""
    trainer = SimpleNamespace(
        template=template,
        args=SimpleNamespace(output_dir="/runs/stand-in"),
        accelerator=SimpleNamespace(process_index=0),
        _prepare_batch_inputs=lambda samples: None,
        _score_completions=lambda samples: None,
        _compute_loss_and_metrics=lambda model, model_inputs, grpo_batch: None,
        _get_per_token_logps_and_entropies=lambda model, model_inputs, grpo_batch: None,
        log=lambda logs, start_time=None: None,
    )
    before = dict(vars(trainer))
    recorder = ms_swift.watch(trainer, home=home)
    recorder.close()
    assert vars(trainer) == before | {WATCHED: recorder}
    assert ms_swift.watch(trainer, home=home) is recorder
    (report,) = health_events(home)["self_test"]
    assert words in report["message"]


def test_ms_swift_without_a_home_goes_on_and_one_warning_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delenv("LOGPROBE_HOME", raising=False)
    trainer = SimpleNamespace(
        args=SimpleNamespace(output_dir="/runs/stand-in"), accelerator=SimpleNamespace(process_index=0)
    )
    before = dict(vars(trainer))
    recorder = ms_swift.watch(trainer)
    assert ms_swift.watch(trainer) is recorder
    assert vars(trainer) == before | {WATCHED: recorder}
    assert not recorder.checkpoint(1)
    (warning,) = caplog.messages
    assert warning.startswith("logprobe: ms_swift.watch: nothing is recorded: no home")


@pytest.mark.parametrize("key", ["completion_mask", "old_per_token_logps", "advantages"])
def test_ms_swifts_renamed_key_is_named_and_what_is_lost_is_counted(
    home: Path, monkeypatch: pytest.MonkeyPatch, key: str
) -> None:
    """What is needed costs the sequences; what is not costs itself only."""
    monkeypatch.delenv("LOGPROBE_HOME", raising=False)  # the engine's plugin is not there
    ones = torch.ones(4, 3)
    fields = dict.fromkeys(
        ("completion_mask", "old_per_token_logps", "rollout_per_token_logps", "ref_per_token_logps", "advantages"), ones
    )
    fields["new_name"] = fields.pop(key)
    trainer = SimpleNamespace(
        template=SimpleNamespace(padding_free=False, sequence_parallel_size=1),
        args=SimpleNamespace(output_dir="/runs/stand-in", use_vllm=False),
        accelerator=SimpleNamespace(process_index=0),
        state=SimpleNamespace(global_step=6),
        model=SimpleNamespace(training=True),
        reward_weights=torch.ones(1),
        _rewards_per_func=ones[:, :1],
        _prepare_batch_inputs=lambda samples: [
            {
                "grpo_batch": SimpleNamespace(**fields),
                "model_inputs": {"input_ids": torch.ones(4, 5, dtype=torch.int64)},
            }
        ],
        _score_completions=lambda samples: None,
        _compute_loss_and_metrics=lambda model, model_inputs, grpo_batch: None,
        _get_per_token_logps_and_entropies=lambda model, model_inputs, grpo_batch: (-ones, None),
        log=lambda logs, start_time=None: None,
    )
    recorder = ms_swift.watch(trainer, home=home, run="run")
    (batch,) = trainer._prepare_batch_inputs([SimpleNamespace(prompt_id="p")] * 4)
    trainer._get_per_token_logps_and_entropies(trainer.model, batch["model_inputs"], batch["grpo_batch"])
    trainer._compute_loss_and_metrics(trainer.model, batch["model_inputs"], batch["grpo_batch"])
    recorder.close()
    needed = key != "advantages"
    assert len(rows(home, "training")) == (0 if needed else 4)
    (report,) = health_events(home)["missing_key"]
    assert f"the batch has no {key}," in report["message"]
    assert (report["severity"], report.get("sequences", 0)) == ("warning", 4 if needed else 0)


def test_an_unknown_signature_is_named() -> None:
    assert unknown_methods(Host(), {"double": ("number",)}) == []
    assert unknown_methods(Host(), {"double": ("batch",)}) == ["Host.double has no parameter batch"]
    assert unknown_methods(Host(), {"halve": ()}) == ["Host has no method halve"]


class Passing(Host):
    """A subclass that passes on whatever comes, as people write them."""

    def double(self, *args: Any, **kwargs: Any) -> int:
        return super().double(*args, **kwargs)


def test_a_subclass_that_passes_on_whatever_comes_is_known_by_what_it_overrides(home: Path) -> None:
    host, seen = Passing(), []
    assert unknown_methods(host, {"double": ("number", "times")}) == []
    assert unknown_methods(Passing, {"double": ("number",)}) == []
    assert unknown_methods(SimpleNamespace(log=lambda *args, **kwargs: None), {"log": ("logs",)}) == []
    with Recorder(home, "run") as recorder:
        Wrapper(recorder, "host").around(host, "double", lambda number: (number + 1,), lambda r, n: seen.append((r, n)))
        assert host.double(number=3) == 8
        assert recorder.health["dropped"] == {}
    assert seen == [(8, 4)]


def test_missing_keys_of_mappings_and_objects() -> None:
    assert missing_keys({"a": 1}, ("a", "b")) == ["b"]
    assert missing_keys(SimpleNamespace(a=None), ("a", "b")) == ["b"]
