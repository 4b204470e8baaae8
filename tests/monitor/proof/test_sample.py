"""Sample files: what is read, and what is said about a file that does not fit."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from logprobe.collectors.errors import ConfigurationError
from logprobe.monitor.proof.sample import Span, assumptions, digest, read_sample, stating

ROW = {"sample_id": "a", "prompt_ids": [1, 2], "response_ids": [3, 4], "rollout_logprobs": [-1.0, None]}


def _written(folder, *rows):
    path = folder / "sample.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_json_lines_and_parquet_are_read_alike(tmp_path):
    rows = [
        {**ROW, "temperature": 0.7, "sampling": {"top_p": 0.9, "top_k": -1, "min_p": 0.0}, "rollout_version": "3"},
        {**ROW, "sample_id": "b", "trainer_logprobs": [-1.0, -2.0], "sampling": None},
    ]
    from_lines = read_sample(_written(tmp_path, *rows))
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "sample.parquet")
    from_parquet = read_sample(tmp_path / "sample.parquet")
    assert digest(from_lines) == digest(from_parquet)
    first, second = from_lines
    assert (first.temperature, first.sampling, first.rollout_version) == (0.7, {"top_p": 0.9}, "3")
    assert np.isnan(first.rollout[1])
    assert first.trainer is None
    assert second.temperature == 1.0
    np.testing.assert_array_equal(second.trainer, [-1.0, -2.0])


def test_what_is_scored_has_one_identity_whatever_was_recorded_about_it(tmp_path):
    before = digest(read_sample(_written(tmp_path, ROW)))
    assert digest(read_sample(_written(tmp_path, {**ROW, "rollout_logprobs": [-3.0, -4.0]}))) == before
    assert digest(read_sample(_written(tmp_path, {**ROW, "temperature": 0.5}))) != before
    assert digest(read_sample(_written(tmp_path, {**ROW, "response_ids": [3, 5]}))) != before


def test_a_greedy_response_is_scored_without_a_temperature_and_spans_are_kept(tmp_path):
    spans = [{"start": 0, "end": 1, "version": "1"}, {"start": 1, "end": 2, "version": 2}]
    (one,) = read_sample(_written(tmp_path, {**ROW, "temperature": 0, "spans": spans}))
    assert (one.temperature, one.spans) == (1.0, (Span(0, 1, "1"), Span(1, 2, "2")))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"prompt_ids": None}, "row 1: prompt_ids missing"),
        ({"response_ids": []}, "response_ids is empty"),
        ({"response_ids": ["x"]}, "response_ids is not a list of integers"),
        ({"rollout_logprobs": [-1.0]}, "rollout_logprobs has 1 values for 2 response tokens"),
        ({"trainer_logprobs": "ab"}, "trainer_logprobs is not a list of numbers"),
        ({"temperature": -1}, "temperature -1"),
        ({"sampling": "{"}, "sampling is not an object"),
    ],
)
def test_a_row_that_does_not_fit_is_named(tmp_path, change, words):
    with pytest.raises(ConfigurationError, match=words):
        read_sample(_written(tmp_path, {**ROW, **change}))


def test_a_file_that_is_no_sample_gives_one_clear_line(tmp_path):
    for name, content in [("a.jsonl", b"{"), ("b.jsonl", b"[1]"), ("c.parquet", b"PAR1"), ("d.jsonl", b"")]:
        (tmp_path / name).write_bytes(content)
        with pytest.raises(ConfigurationError, match=name):
            read_sample(tmp_path / name)
    with pytest.raises(ConfigurationError, match=r"e\.jsonl"):
        read_sample(tmp_path / "e.jsonl")


# --- Rows of other programs: three prompt tokens and two of a response, however they are written ---

PROMPT, RESPONSE, ROLLOUT, TRAINER = [5, 6, 7], [8, 9], [-0.5, -1.5], [-0.25, -1.25]
MASK = [0, 0, 0, 1, 1]
FOREIGN = {
    "TRL": {
        "prompt_ids": [0, *PROMPT], "prompt_mask": [0, 1, 1, 1], "completion_ids": [*RESPONSE, 0], "completion_mask": [1, 1, 0],
        "sampling_per_token_logps": [*ROLLOUT, 0.0], "old_per_token_logps": [*TRAINER, 0.0], "advantages": 0.5,
    },
    "prime-rl": {
        "step": 1, "token_ids": [*PROMPT, *RESPONSE], "loss_mask": [bool(flag) for flag in MASK], "temperatures": [0.7] * 5,
        "inference_logprobs": [0, 0, 0, *ROLLOUT], "trainer_logprobs": [-1, -1, -1, *TRAINER], "export_sequence_idx": 4,
    },
    "NeMo-RL": {
        "token_ids": [[*PROMPT, *RESPONSE, 0, 0]], "input_lengths": [5], "token_loss_mask": [[*MASK, 0, 0]],
        "generation_logprobs": [[0, 0, 0, *ROLLOUT, 0, 0]], "prev_logprobs": [[0, 0, 0, *TRAINER, 0, 0]], "idx": 4,
    },
    "slime": {
        "tokens": [*PROMPT, *RESPONSE], "response_length": 2, "loss_mask": [1, 1], "rollout_log_probs": ROLLOUT,
        "log_probs": TRAINER, "index": 4,
    },
    "verl, a DataProto's row": {
        "prompts": [0, 0, *PROMPT], "responses": [*RESPONSE, 0], "response_mask": [1, 1, 0],
        "attention_mask": [0, 0, 1, 1, 1, 1, 1, 0], "rollout_log_probs": [*ROLLOUT, 0.0], "old_log_probs": [*TRAINER, 0.0], "uid": "4",
    },
    "verl, v1": {
        "input_ids": [0, *PROMPT, *RESPONSE], "attention_mask": [0, 1, 1, 1, 1, 1], "response_mask": [0, *MASK], "rollout_log_probs": ROLLOUT, "old_log_probs": TRAINER, "uid": "4",
    },
    "open-instruct": {
        "step": 1, "sample_idx": 4, "prompt_tokens": PROMPT, "response_tokens": RESPONSE, "logprobs": ROLLOUT,
    },
    "PipelineRL": {
        "text": "p r", "n_predicted": 1, "input_ids": [*PROMPT, *RESPONSE], "labels": [-100, -100, -100, *RESPONSE], "logprobs": ROLLOUT,
        "prompt_tokens": 3, "output_tokens": 2,
    },
    "vLLM, completions": {
        "id": "cmpl-4", "prompt_token_ids": PROMPT,
        "choices": [{"token_ids": RESPONSE, "logprobs": {"token_logprobs": ROLLOUT, "tokens": ["a", "b"]}}],
    },
    "vLLM, chat": {
        "id": "chatcmpl-4", "prompt_token_ids": PROMPT,
        "choices": [{"token_ids": RESPONSE, "logprobs": {"content": [{"token": "a", "logprob": value} for value in ROLLOUT]}}],
    },
    "vLLM, LLM.generate": {
        "request_id": "4", "prompt_token_ids": PROMPT,
        "outputs": [{"token_ids": RESPONSE, "logprobs": [{"8": {"logprob": -0.5}}, {"9": {"logprob": -1.5}, "3": {"logprob": -9}}]}],
    },
    "logprobe, training rows": {
        "step": 1, "sample_id": "4", "token_ids": [*PROMPT, *RESPONSE], "mask": MASK, "rollout_logprobs": [None, None, None, *ROLLOUT],
        "trainer_logprobs": [None, None, None, *TRAINER], "weight_version": "12",
    },
    "logprobe, without a name": {"prompt_ids": PROMPT, "response_ids": RESPONSE, "rollout_logprobs": ROLLOUT},
}  # fmt: skip


@pytest.mark.parametrize("program", FOREIGN)
def test_rows_of_other_programs_are_read(tmp_path, program):
    row = FOREIGN[program]
    (found,) = read_sample(_written(tmp_path, row))
    assert (found.prompt_ids, found.response_ids) == (tuple(PROMPT), tuple(RESPONSE))
    np.testing.assert_allclose(found.rollout, ROLLOUT)
    if any("old" in name or "prev" in name or "trainer" in name or name == "log_probs" for name in row):
        np.testing.assert_allclose(found.trainer, TRAINER)
    assert ("temperature" in found.assumed) == ("temperatures" not in row)


def test_what_a_sample_lacks_is_named_and_can_be_stated(tmp_path):
    row = {"sample_id": "a", "prompt_ids": PROMPT, "response_ids": RESPONSE}
    bare = read_sample(_written(tmp_path, row))
    begins = ["recorded r", "recorded t", "temperature", "sampling params"]
    assert [words.partition(":")[0] for words in assumptions(bare)] == begins
    (warm,) = stating(bare, '{"temperature": 0.7}', "--sampling")
    assert (warm.temperature, warm.sampling, warm.assumed) == (0.7, {}, ("sampling",))
    (told,) = stating([warm], '{"temperature": 0.5, "top_p": 0.9}', "--sampling")
    assert (told.temperature, told.sampling, told.assumed) == (0.7, {"top_p": 0.9}, ())  # what a row states stays
    for text, words in (("{", "invalid JSON"), ('{"temprature": 1}', "not an object of"), ("[]", "not an object of")):
        with pytest.raises(ConfigurationError, match=words):
            stating(bare, text, "--sampling")
    with pytest.raises(ConfigurationError, match="every sequence states its own"):
        stating([told], '{"temperature": 0.5}', "--sampling")


def test_what_a_tool_wrote_within_a_response_has_no_logprob(tmp_path):
    row = {"token_ids": [5, 6, 7, 8, 9], "loss_mask": [0, 1, 0, 1, 0], "inference_logprobs": [0, -1, 0, -2, 0]}
    (found,) = read_sample(_written(tmp_path, row))
    assert (found.prompt_ids, found.response_ids) == ((5,), (6, 7, 8))
    np.testing.assert_array_equal(found.rollout, [-1, np.nan, -2])


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({"input": "a question", "output": "an answer"}, "a text is not enough"),
        ({"token_ids": [1, 2], "mask": [1, 1]}, "the prompt's token ids are missing"),
        ({"choices": [{"text": "an answer"}]}, "return_token_ids"),
    ],
)
def test_a_row_without_token_ids_says_what_is_missing(tmp_path, row, words):
    with pytest.raises(ConfigurationError, match=words):
        read_sample(_written(tmp_path, row))


def test_a_dump_of_slime_is_read(tmp_path):
    import torch

    torch.save({"rollout_id": 1, "samples": [FOREIGN["slime"] | {"prompt": "p"}]}, tmp_path / "rollout_1.pt")
    (found,) = read_sample(tmp_path / "rollout_1.pt")
    assert (found.sample_id, found.prompt_ids, found.response_ids) == ("4", tuple(PROMPT), tuple(RESPONSE))


def test_a_mask_over_the_response_leaves_out_what_a_tool_wrote(tmp_path):
    row = {**FOREIGN["slime"], "loss_mask": [0, 1]}
    (found,) = read_sample(_written(tmp_path, row))
    np.testing.assert_array_equal(found.rollout, [np.nan, ROLLOUT[1]])


def test_a_line_may_hold_several_rows(tmp_path):
    assert len(read_sample(_written(tmp_path, [FOREIGN["PipelineRL"]] * 2))) == 2


class _Runs:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


def test_a_pickle_is_read_without_running_what_it_names(tmp_path):
    (tmp_path / "a.pkl").write_bytes(pickle.dumps({"batch_dict": _Runs(tmp_path / "touched")}))
    with pytest.raises(ConfigurationError, match="not a batch dumped by SkyRL"):
        read_sample(tmp_path / "a.pkl")
    assert not (tmp_path / "touched").exists()
