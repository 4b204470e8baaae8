"""Names that engine and trainer can both compute. That they are vLLM's is tested on real engines, in tests/e2e."""

from __future__ import annotations

import doctest
import hashlib
from types import SimpleNamespace

import numpy as np
import pytest

from logprobe.collectors.errors import InputError
from logprobe.collectors.vllm import ids as vllm_ids
from logprobe.collectors.vllm.ids import prompt_hash, response_sample_id, sample_id, sample_ids, split_internal


def test_examples() -> None:
    assert doctest.testmod(vllm_ids).failed == 0


@pytest.mark.parametrize(
    ("internal", "external", "expected"),
    [
        ("7-0123abcd", "7", ("7", 0)),
        ("0_7-0123abcd", "7", ("7", 0)),
        ("12_7-0123abcd", "7", ("7", 12)),
        # a caller's id that looks like a child's
        ("1_7-0123abcd", "1_7", ("1_7", 0)),
        ("3_1_7-0123abcd", "1_7", ("1_7", 3)),
        # a caller's id that ends like the random part
        ("a-deadbeef-0123abcd", "a-deadbeef", ("a-deadbeef", 0)),
        ("2_a-deadbeef-0123abcd", "a-deadbeef", ("a-deadbeef", 2)),
        # VLLM_DISABLE_REQUEST_ID_RANDOMIZATION
        ("7", "7", ("7", 0)),
        ("2_7", "7", ("7", 2)),
        # a front-end that does not say what its caller called it
        ("7-0123abcd", None, ("7", 0)),
        ("2_7-0123abcd", None, ("7", 2)),
        ("x_7", None, ("x_7", 0)),
    ],
)
def test_split_internal(internal: str, external: str | None, expected: tuple[str, int]) -> None:
    assert split_internal(internal, external) == expected


def test_sample_ids_of_a_request_output() -> None:
    output = SimpleNamespace(request_id="5", outputs=[SimpleNamespace(index=1), SimpleNamespace(index=0)])
    assert sample_ids(output) == ["5/1", "5/0"]
    assert sample_id(output, 1, prefix="rank3:") == "rank3:5/1"


def test_prefix_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOGPROBE_RECORD", "prefix=rank1:")
    assert sample_id("5") == "rank1:5/0"
    assert response_sample_id("chatcmpl-5") == "rank1:chatcmpl-5/0"


@pytest.mark.parametrize(
    ("choice", "expected"), [(0, "cmpl-x-0/0"), (2, "cmpl-x-0/2"), (3, "cmpl-x-1/0"), (5, "cmpl-x-1/2")]
)
def test_choices_of_several_prompts(choice: int, expected: str) -> None:
    assert response_sample_id("cmpl-x", choice, n=3, prompts=2) == expected


def test_a_choice_that_cannot_be() -> None:
    with pytest.raises(InputError, match="choice 6"):
        response_sample_id("cmpl-x", 6, n=3, prompts=2)


def test_prompt_hash_is_of_the_ids() -> None:
    expected = hashlib.blake2b(np.array([5, 70_000], dtype="<i4").tobytes(), digest_size=8).hexdigest()
    assert prompt_hash([5, 70_000]) == prompt_hash(np.array([5, 70_000])) == expected
    assert prompt_hash([70_000, 5]) != expected
