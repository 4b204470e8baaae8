"""The sample of a recorded run: what can be scored again, and what is said where something is missing."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from importing_files import ROLLOUT, TOKENS, TRAINER, nemo_row, write_lines
from segments import RUN, sampled, trained
from store_work import Fed

from logprobe.app.cli import main
from logprobe.collectors import Recorder
from logprobe.collectors.errors import ConfigurationError
from logprobe.collectors.weights import mark
from logprobe.monitor.live.ingest import Ingester
from logprobe.monitor.proof.recorded_sample import recorded_checkpoints, recorded_sample
from logprobe.monitor.proof.setup import Setup
from logprobe.monitor.reader import open_reader
from logprobe.monitor.store.store import Store

SPANS = [{"start": 0, "end": 2, "version": "6"}, {"start": 2, "end": 4, "version": "7"}]
SUMMARY = {
    "dtype": "bfloat16",
    "head_dtype": "float32",
    "logprobs_mode": "raw_logprobs",
    "quantization": None,
    "seed": 3,
}
ENVIRONMENT = {"VLLM_BATCH_INVARIANT": "1", "VLLM_HOST_IP": "10.0.0.1"}
ENGINE_DOCUMENT = {"document": {"summary": SUMMARY, "environment": ENVIRONMENT}}


def of(*versions: str, arguments: str = "") -> Setup:
    """What a user passes who has these checkpoints."""
    return Setup(dict.fromkeys(versions, Path("model")), arguments=arguments)


def _feed(
    store: Store,
    *,
    prompt: list[int] | None,
    spans: list[dict] | None = None,
    version: str | None = "7",
    run: str = RUN,
) -> None:
    documents = [
        ("engine", "engine_config", ENGINE_DOCUMENT["document"]),
        ("warm", "sampling_params", {"temperature": 0.7, "top_p": 0.9, "top_k": -1}),
    ]
    rows = [{"fingerprint": name, "kind": kind, "document": json.dumps(text)} for name, kind, text in documents]
    known = {"prompt_hash": "ab", "sampling_id": "warm", "engine_config_id": "engine"}
    known["spans"] = spans or [{"start": 0, "end": 4, "version": "7"}]
    answers = [{**sampled(name), **known, "prompt_token_ids": prompt if name == "a" else None} for name in ("a", "b")]
    used = [{**trained(name, 3, received=False), "weight_version": version} for name in ("a", "b")]
    Fed(store).feed(run, config=rows, rollout=answers, training=used)


def test_both_answers_to_a_recorded_prompt_are_scored_as_the_engine_was_set_up(store: Store):
    _feed(store, prompt=[11, 12])
    (first, second), setup = recorded_sample(store, RUN, of("7"), most=10)
    assert (first.sample_id, second.sample_id) == ("a", "b")
    assert first.prompt_ids == second.prompt_ids == (11, 12)
    assert len(first.response_ids) == 4
    assert (first.temperature, first.sampling) == (0.7, {"top_p": 0.9})
    assert (first.rollout_version, first.trainer_version, first.spans) == ("7", "7", ())
    assert np.isfinite(first.rollout).all()
    assert np.isfinite(first.trainer).all()
    assert setup.overrides == {
        "dtype": "bfloat16",
        "logprobs_mode": "raw_logprobs",
        "hf_overrides": {"head_dtype": "float32"},
    }
    assert setup.environment == {"VLLM_BATCH_INVARIANT": "1"}
    assert setup.not_repeated == ("the engine's arguments, which were not recorded",)
    assert len(recorded_sample(store, RUN, of("7"), most=1)[0]) == 1


def test_a_response_of_two_versions_keeps_where_they_met_and_what_lacks_something_says_what(store: Store):
    _feed(store, prompt=[11, 12], spans=SPANS)
    (first, _), _ = recorded_sample(store, RUN, of("6", "7"), most=10)
    assert first.rollout_version == "7"
    assert [(span.start, span.end, span.version) for span in first.spans] == [(0, 2, "6"), (2, 4, "7")]
    _feed(store, prompt=[11, 12], run="whole")
    _feed(store, prompt=None, run="no prompts")
    _feed(store, prompt=[11, 12], version=None, run="no version")
    for run, version, words in (
        ("no prompts", "7", "LOGPROBE_RECORD=prompts="),
        ("no version", "7", "an unknown version"),
        ("whole", "9", "2 sampled by 7 and trained on by 7; --model for 9"),
        ("whole", "", "2 sampled by 7 and trained on by 7; a --model without a version"),
    ):
        with pytest.raises(ConfigurationError, match=words):
            recorded_sample(store, run, of(version), most=10)


def test_a_trainer_may_name_the_checkpoint_of_a_version(store: Store, tmp_path: Path):
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text("{}")
    with Recorder(store.home.path, RUN) as recorder:
        recorder.weights(7, checkpoint=tmp_path / "first")
        recorder.weights(8, checkpoint=tmp_path / "gone")
        recorder.weights(9)
    Ingester(store).run_once()
    assert recorded_checkpoints(store, RUN) == {"7": tmp_path / "first"}
    with Recorder(store.home.path, RUN) as recorder:
        recorder.weights(7, checkpoint=tmp_path / "second")
        mark(10, checkpoint=tmp_path / "first", recorder=recorder, home=store.home.path, run=RUN)
    Ingester(store).run_once()
    assert recorded_checkpoints(store, RUN) == {"7": tmp_path / "second", "10": tmp_path / "first"}


def test_recorded_arguments_are_repeated_whole_and_those_that_cannot_be_are_listed(store: Store, monkeypatch):
    given = {
        "model": "org/name",
        "port": 8000,
        "hf_overrides": {"rope_parameters": {"rope_theta": 500.0}},
        "compilation_config": {"mode": 3},
        "attention_config": "attentionconfig(backend=none)",
        "speculative_config": {"method": "ngram", "num_speculative_tokens": 3},
        "async_scheduling": True,
    }
    whole = {"summary": SUMMARY, "environment": ENVIRONMENT, "arguments": given, "versions": {"vllm": "0.30.0"}}
    monkeypatch.setitem(ENGINE_DOCUMENT, "document", whole)
    _feed(store, prompt=[11, 12])
    _, setup = recorded_sample(store, RUN, of("7"), most=10)
    assert setup.overrides == {
        "dtype": "bfloat16",
        "logprobs_mode": "raw_logprobs",
        "hf_overrides": {"rope_parameters": {"rope_theta": 500.0}, "head_dtype": "float32"},
        "compilation_config": {"mode": 3},
        "async_scheduling": True,
    }
    assert setup.not_repeated == ("attention_config", "speculative_config")
    fresh = {**SUMMARY, "seed": 9, "logprobs_mode": "processed_logprobs", "vllm": "0.32.0"}
    assert setup.unlike(fresh) == (
        "attention_config",
        "speculative_config",
        "logprobs_mode (raw_logprobs, here processed_logprobs)",
        "vllm (0.30.0, here 0.32.0)",
    )
    by_hand = of("7", arguments="--no-async-scheduling --logprobs-mode=processed_logprobs")
    _, setup = recorded_sample(store, RUN, by_hand, most=10)
    assert set(setup.overrides) == {"dtype", "hf_overrides", "compilation_config"}


def test_an_imported_run_is_scored_from_the_trainers_records_by_step(tmp_path: Path):
    """Its files have all tokens with a mask; nothing is known of the engine, and no checkpoint serves for another step."""
    source, home = tmp_path / "source", tmp_path / "home"
    write_lines(source / "train_data_step3.jsonl", [nemo_row(0), nemo_row(1)])
    write_lines(source / "train_data_step4.jsonl", [nemo_row(0)])
    assert main(["import", str(source), "--run", RUN, "--home", str(home)]) == 0
    with open_reader(home) as reader:
        (one, _), setup = recorded_sample(reader, RUN, of("3"), most=10)
        with pytest.raises(ConfigurationError, match="1 sampled by 4 and trained on by 4"):
            recorded_sample(reader, RUN, of(""), most=10)
        (of_step,), _ = recorded_sample(reader, RUN, of("3", "4"), most=10, step=4)
        with pytest.raises(ConfigurationError, match="no sequence of step 5"):
            recorded_sample(reader, RUN, of("3"), most=10, step=5)
    assert of_step.rollout_version == "4"
    assert (one.prompt_ids, one.response_ids) == (tuple(TOKENS[:2]), tuple(TOKENS[2:]))
    np.testing.assert_allclose(one.rollout, ROLLOUT[2:])
    np.testing.assert_allclose(one.trainer, TRAINER[2:])
    assert "temperature" in one.assumed
    assert setup.not_repeated == ("the engine's settings, which were not recorded",)


def test_what_a_tool_wrote_within_an_imported_response_has_no_logprob(store: Store):
    with Recorder(store.home.path, RUN) as recorder:
        recorder.training(
            step=3,
            sample_ids=["a"],
            token_ids=[[5, 6, 7, 8, 9]],
            mask=[[0, 1, 0, 1, 0]],
            rollout_logprobs=[[-0.5, -1, -0.25, -2, -0.5]],
            trainer_logprobs=[[-0.5, -1.5, -0.25, -2.5, -0.5]],
        )
    Ingester(store).run_once()
    (found,), _ = recorded_sample(store, RUN, of("3"), most=10)
    assert (found.prompt_ids, found.response_ids) == ((5,), (6, 7, 8))
    np.testing.assert_array_equal(found.rollout, [-1, np.nan, -2])
    np.testing.assert_array_equal(found.trainer, [-1.5, np.nan, -2.5])
