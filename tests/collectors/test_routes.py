"""Routes: one fingerprint per token and layer that stands for a set of experts, and the way there through a recorder."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from spool_contents import by_sample, health_events

from logprobe.collectors import Recorder, routes
from logprobe.collectors.errors import InputError
from logprobe.collectors.routes import NO_ROUTE, fingerprints

RNG = np.random.default_rng(3)


def sets_of(count: int, size: int = 8, experts: int = 128) -> np.ndarray:
    """[count, 1, size] random experts; to draw each only once would take longer than what is asked here."""
    return RNG.integers(0, experts, (count, 1, size))


def drawn(tokens: int, layers: int = 3, size: int = 2) -> np.ndarray:
    return np.argsort(RNG.random((tokens, layers, 16)), axis=2)[:, :, :size]


@pytest.mark.parametrize("dtype", [np.uint8, np.int16, np.uint16, np.int64])
def test_order_and_type_do_not_matter(dtype: type) -> None:
    chosen = drawn(50, layers=4, size=6)
    marks = fingerprints(chosen.astype(dtype))
    assert (marks.shape, marks.dtype) == ((50, 4), np.uint16)
    assert (marks == fingerprints(chosen[..., ::-1])).all()
    assert (marks == fingerprints(RNG.permuted(chosen, axis=2))).all()
    assert (marks != NO_ROUTE).all()


def test_small_sets_are_all_told_apart() -> None:
    for experts, size in ((128, 1), (12, 2)):
        sets = np.array(list(itertools.combinations(range(experts), size)))[:, None, :]
        assert len(set(fingerprints(sets)[:, 0].tolist())) == len(sets)


def test_different_sets_agree_by_chance_as_often_as_stated() -> None:
    first, second = sets_of(100_000), sets_of(100_000)
    second[:50_000] = first[:50_000]
    # Half of them differ in one expert, as they do in practice
    second[:50_000, 0, 0] = (first[:50_000, 0, 0] + 1) % 128
    differ = (np.sort(first, axis=2) != np.sort(second, axis=2)).any(axis=2)
    chance = (fingerprints(first) == fingerprints(second))[differ].sum()
    assert chance <= 14  # 1.5 expected; more would be one in 10⁹


def test_what_is_no_route() -> None:
    experts = np.array([[[0, 0], [3, 5], [-1, 4]]])
    assert (fingerprints(experts) == NO_ROUTE).tolist() == [[True, False, True]]
    assert fingerprints(np.array([[[0]]])) != NO_ROUTE  # one expert per token: the first of them is a route
    assert fingerprints(np.zeros((4, 2, 0), np.int64)).tolist() == [[0, 0]] * 4


def test_many_tokens_are_each_what_they_are_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = drawn(101)
    whole = fingerprints(chosen)
    monkeypatch.setattr(routes, "_CHUNK", 7)
    assert (fingerprints(chosen) == whole).all()


@pytest.mark.parametrize("wrong", [np.zeros((2, 3)), np.zeros((2, 3, 4)), np.full((1, 1, 1), 65_536)])
def test_what_cannot_be_routes_is_refused(wrong: np.ndarray) -> None:
    with pytest.raises(InputError, match="routes"):
        fingerprints(wrong)


# --- Through a recorder ---


def call(tokens: Any, **more: Any) -> dict[str, Any]:
    values = [np.full(len(row), -0.5) for row in tokens] if isinstance(tokens, list) else np.full(tokens.shape, -0.5)
    return {"step": 1, "token_ids": tokens, "trainer_logprobs": values, "rollout_logprobs": values, **more}


def stored(home: Path) -> dict[str, list[int] | None]:
    return {name: row["routes"] for name, row in by_sample(home, "training").items()}


def test_every_layout_and_both_forms(home: Path) -> None:
    experts = drawn(7)
    marks = fingerprints(experts)
    mask = np.array([[0, 1, 1, 1, 0], [1, 1, 1, 1, 0]])
    padded = np.zeros((2, 5, *experts.shape[1:]), np.int64)
    padded[mask.astype(bool)] = experts
    ids = np.arange(10).reshape(2, 5)
    with Recorder(home, "run") as recorder:
        assert recorder.training(**call(ids, sample_ids=["a", "b"], mask=mask, routes=padded))
        assert recorder.training(**call(ids, sample_ids=["c", "d"], mask=mask, routes=torch.from_numpy(padded)))
        packed = {"cu_seqlens": [0, 3, 7]}
        assert recorder.training(**call(np.arange(7), sample_ids=["e", "f"], routes=experts, **packed))
        assert recorder.training(**call(np.arange(7), sample_ids=["g", "h"], routes=marks, **packed))
        lists = [np.arange(3), np.arange(4)]
        assert recorder.training(**call(lists, sample_ids=["i", "j"], routes=[experts[:3], experts[3:]]))
        assert recorder.training(**call(lists, sample_ids=["k", "l"], routes=[marks[:3], None]))
    found = stored(home)
    for first, second in ("ab", "cd", "ef", "gh", "ij"):
        assert (found[first], found[second]) == (marks[:3].reshape(-1).tolist(), marks[3:].reshape(-1).tolist())
    assert (found["k"], found["l"]) == (marks[:3].reshape(-1).tolist(), [NO_ROUTE] * 12)


def test_layers_without_experts_are_left_out(home: Path) -> None:
    """vLLM reports every layer, with zeros for the dense ones; trainers mostly report those with a router."""
    experts = drawn(4)
    with_dense = np.concatenate([np.zeros((4, 1, 2), np.int64), experts], axis=1)
    with Recorder(home, "run") as recorder:
        for name, value in (("a", experts), ("b", with_dense), ("c", with_dense[:, :1])):
            recorder.training(**call([np.arange(4)], sample_ids=[name], routes=[value]))
        recorder.training(**call([np.arange(4), np.arange(2)], sample_ids=["d", "e"], routes=[None, None]))
    found = stored(home)
    assert found["a"] == found["b"] == fingerprints(experts).reshape(-1).tolist()
    assert (found["c"], found["d"], found["e"]) == (None, None, None)


def test_long_calls_are_cut_with_their_routes(home: Path) -> None:
    lengths = [5, 1, 8, 3]
    lists = [np.arange(n) for n in lengths]
    experts = [drawn(n) for n in lengths]
    with Recorder(home, "run", segment_tokens=6) as recorder:
        recorder.training(**call(lists, sample_ids=list("abcd"), routes=experts))
        recorder.training(**call(lists, sample_ids=list("efgh")))
        recorder.rollout(sample_ids=list("abcd"), token_ids=lists, logprobs=[-0.5 * x for x in lists], routes=experts)
    expected = {name: fingerprints(x).reshape(-1).tolist() for name, x in zip("abcd", experts, strict=True)}
    assert stored(home) == expected | dict.fromkeys("efgh")
    assert {name: row["routes"] for name, row in by_sample(home, "rollout").items()} == expected


def test_routes_that_do_not_fit_are_refused_and_counted(home: Path) -> None:
    experts = drawn(4)
    wrong = {
        "other tokens": [experts[:3]],
        "other layers": [experts, experts[:, :2]],
        "no layers": [experts[:, 0, 0]],
        "no numbers": [experts.astype(np.float32)],
        "too many": [experts, experts, experts],
    }
    with Recorder(home, "run") as recorder:
        for value in wrong.values():
            tokens = [np.arange(4)] * min(len(value), 2)
            assert not recorder.training(**call(tokens, sample_ids=list("ab")[: len(tokens)], routes=value))
    refused = health_events(home)["bad_input"]
    assert sum(row["count"] for row in refused) == len(wrong)
    assert "routes" in refused[0]["message"]


def test_routes_count_in_the_memory_of_the_queue(home: Path) -> None:
    """A call that does not fit because of its routes is refused, not squeezed in."""
    ids = np.arange(1000)
    small = Recorder(home, "run", queue_bytes=1 << 20)
    with small as recorder:
        routed = call(ids, sample_ids=["a"], cu_seqlens=[0, 1000], routes=np.zeros((1000, 16, 16), np.int64))
        assert not recorder.training(**routed)
        assert recorder.training(**call(ids, sample_ids=["b"], cu_seqlens=[0, 1000]))
    assert list(by_sample(home, "training")) == ["b"]
    assert health_events(home)["queue_full"]
