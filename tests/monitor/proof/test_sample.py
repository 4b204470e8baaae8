"""Sample files: what is read, and what is said about a file that does not fit."""

from __future__ import annotations

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from logprobe.collectors.errors import ConfigurationError
from logprobe.monitor.proof.sample import Span, assumptions, read_sample, stating

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
    assert [one.job() for one in from_lines] == [one.job() for one in from_parquet]
    first, second = from_lines
    assert (first.temperature, first.sampling, first.rollout_version) == (0.7, {"top_p": 0.9}, "3")
    assert np.isnan(first.rollout[1])
    assert first.trainer is None
    assert second.temperature == 1.0
    np.testing.assert_array_equal(second.trainer, [-1.0, -2.0])


def test_a_greedy_response_is_scored_without_a_temperature_and_spans_are_kept(tmp_path):
    spans = [{"start": 0, "end": 1, "version": "1"}, {"start": 1, "end": 2, "version": 2}]
    (one,) = read_sample(_written(tmp_path, {**ROW, "temperature": 0, "spans": spans}))
    assert (one.temperature, one.spans) == (1.0, (Span(0, 1, "1"), Span(1, 2, "2")))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"prompt_ids": None}, r"row 1: prompt_ids missing; see docs/compare\.md"),
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


def test_what_a_sample_lacks_is_named_and_can_be_stated(tmp_path):
    row = {"sample_id": "a", "prompt_ids": [5, 6, 7], "response_ids": [8, 9]}
    bare = read_sample(_written(tmp_path, row))
    begins = ["recorded r", "recorded t", "temperature", "sampling params"]
    assert [words.partition(":")[0] for words in assumptions(bare)] == begins
    (warm,) = stating(bare, '{"temperature": 0.7}', "--sampling")
    assert (warm.temperature, warm.sampling, warm.assumed) == (0.7, {}, ("sampling",))
    (told,) = stating([warm], '{"temperature": 0.5, "top_p": 0.9}', "--sampling")
    assert (told.temperature, told.sampling, told.assumed) == (0.7, {"top_p": 0.9}, ())  # what a row states stays
    for text, words in (
        ("{", "invalid JSON"),
        ('{"temprature": 1}', "not a JSON object of"),
        ("[]", "not a JSON object of"),
    ):
        with pytest.raises(ConfigurationError, match=words):
            stating(bare, text, "--sampling")
    with pytest.raises(ConfigurationError, match="every sequence states its own"):
        stating([told], '{"temperature": 0.5}', "--sampling")
