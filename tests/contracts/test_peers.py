"""A peer's view of a batch is what that framework reports for it, to 1e-6."""

from __future__ import annotations

import gzip
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from logprobe.collectors.errors import ConfigurationError, InputError
from logprobe.monitor import peers

DATA = Path(__file__).parent.parent / "data"
GOLDEN, ODD = (json.loads(gzip.decompress((DATA / f"peer_{name}.json.gz").read_bytes())) for name in ("views", "odd"))
CASES = GOLDEN["cases"]
SMALL = GOLDEN["modes"]  # one batch of three sequences, the last of them without a token; references have six decimals
SMALL_TOLERANCE = 6e-7

NOT_OURS = {"rllm", "miles", "sky", "areal", "roll", "oi", "tinker"}  # frameworks of the reference that have no view
NEWER_VERL = {"rollout_is_metrics": "after_limits"}


def arguments(case: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    inputs = case["inputs"]
    named = {"current_logprobs": inputs["current_logprobs"], "advantages": inputs["advantages"]}
    return (inputs["rollout_logprobs"], inputs["trainer_logprobs"], inputs["mask"]), named


def small(peer: str, **options: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    inputs = SMALL["input"]
    positional = (peer, inputs["rollout_logprobs"], inputs["train_logprobs"], inputs["mask"])
    return positional, {"advantages": inputs["advantages"], **options}


def asked(report: str, reference: Any) -> tuple[str, dict[str, Any]]:
    """Which peer, with which options, a report of the reference belongs to."""
    name, *rest = report.split("/")
    if name == "slime":
        return "slime", reference["args"]
    if report.startswith("verl/is/"):
        level, threshold, normalized = rest[1:]
        return "verl", {
            "rollout_is": level,
            "rollout_is_threshold": float(threshold),
            "rollout_is_batch_normalize": normalized == "bn=True",
        }
    if report.startswith("verl/rs/"):
        return "verl", {"rollout_rs": rest[1], "rollout_rs_threshold": rest[2]}
    if report.startswith("swift/is/"):
        return "ms-swift", {
            "rollout_importance_sampling_mode": rest[1],
            "rollout_importance_sampling_threshold": float(rest[2]),
        }
    if report.startswith("swift/off_policy_sequence_mask/"):
        return "ms-swift", {"off_policy_sequence_mask_delta": float(rest[1])}
    if name == "trl" and "clip_max" in report:
        return "trl", {"vllm_importance_sampling_mode": rest[0]}
    known = {
        "verl/offpolicy": ("verl", {}),
        "swift/offpolicy": ("ms-swift", {}),
        "trl/sampling_logp_difference": ("trl", {}),
        "pipelinerl/ppo_eps0.2": ("pipelinerl", {}),
        "pipelinerl/gspo_eps3e-4_4e-4": ("pipelinerl", {"epsilon_low": 3e-4, "epsilon_high": 4e-4}),
    }
    return known[report]


def metrics_of(report: str, reference: Any) -> dict[str, float]:
    if "metrics" in reference:
        return reference["metrics"]
    if report.startswith("trl/sampling"):
        return {f"sampling/sampling_logp_difference/{key}": value for key, value in reference.items()}
    if report.startswith("pipelinerl"):
        keys = {"ess_from_sums": "rl/ess"}
        return {keys.get(key, key): value for key, value in reference.items() if "indicator/" not in key}
    return reference if report.endswith("offpolicy") else {}


def same(expected: Any, tolerance: float = 1e-12) -> Any:
    return pytest.approx(expected, rel=1e-6, abs=tolerance, nan_ok=True)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_every_metric_and_correction_of_the_reference_is_reproduced(case: dict[str, Any]) -> None:
    positional, named = arguments(case)
    mask = np.array(case["inputs"]["mask"])
    metrics = corrections = 0
    for report, reference in case["reference"].items():
        peer, options = asked(report, reference)
        values = peers.view(peer, *positional, **named, **options)
        for key, expected in metrics_of(report, reference).items():
            assert values[key] == same(expected), (report, key)
            metrics += 1
        found = peers.correction(peer, *positional, **named, **options)
        if report.startswith("swift/off_policy_sequence_mask"):
            assert (found.mask_BT == mask * np.array(reference)[:, None]).all(), report
            corrections += 1
            continue
        weights = reference.get("weights", reference.get("ratio"))
        if weights is not None:
            assert (found.weights_BT * mask).ravel() == same((weights * mask).ravel()), report
            corrections += 1
        if "mask" in reference:
            assert (found.mask_BT == np.array(reference["mask"])).all(), report
            corrections += 1
    assert metrics > 250
    assert corrections > 100


SMALL_METRICS = {
    "verl": ("verl", NEWER_VERL | {"rollout_is": "token"}),
    "swift": ("ms-swift", {"rollout_importance_sampling_mode": "token_truncate"}),
    "slime": ("slime", {"use_tis": True}),
    "nemo": ("nemo-rl", {}),
    "nemo_k1": ("nemo-rl", {"reference_policy_kl_type": "k1"}),
    "nemo_k2": ("nemo-rl", {"reference_policy_kl_type": "k2"}),
    "prime": ("prime-rl", {}),
    "pipe": ("pipelinerl", {}),
    "trl": ("trl", {}),
    "orlhf": ("openrlhf", {}),
}


@pytest.mark.parametrize("framework", sorted(SMALL["metrics"].keys() - NOT_OURS))
def test_every_metric_of_the_small_batch_is_reproduced(framework: str) -> None:
    peer, options = SMALL_METRICS[framework]
    positional, named = small(peer, **options)
    values = peers.view(*positional, **named)
    for key, expected in SMALL["metrics"][framework].items():
        assert values[key.rpartition(":")[2]] == same(expected, SMALL_TOLERANCE), key


def mode_options(mode: str) -> tuple[str, dict[str, Any]] | None:
    """Which peer, with which options, a mode of the reference belongs to; None: a framework without a view."""
    framework, _, what = mode.partition("/")
    normalize = what.endswith("+ batch_normalize")
    words = what.removesuffix("+ batch_normalize").split()
    if framework == "verl" and words[0] == "IS":
        named = {"rollout_is": words[1], "rollout_is_threshold": words[3], "rollout_is_batch_normalize": normalize}
        return "verl", named | NEWER_VERL
    if framework == "verl":
        return "verl", {"rollout_rs": words[1], "rollout_rs_threshold": words[2]}
    if framework == "ms-swift":
        return "ms-swift", {"rollout_importance_sampling_mode": words[0]}
    if framework == "slime mis":
        tis = {"use_tis": True, "tis_level": words[0], "tis_mode": words[1].partition("+")[0]}
        rs = {"use_rs": True, "rs_level": "token", "rs_veto_threshold": 1e-4} if "RS" in what else {}
        return "slime", tis | rs | {"tis_batch_normalize": normalize}
    if framework == "TRL":
        low, high = (None if word.endswith("None") else float(word.partition("=")[2]) for word in words[1:])
        bounds = {"vllm_importance_sampling_clip_min": low, "vllm_importance_sampling_clip_max": high}
        return "trl", {"vllm_importance_sampling_mode": words[0]} | bounds
    if framework == "OpenRLHF":
        return "openrlhf", {"vllm_is_correction_type": words[0]}
    return ("prime-rl", {}) if framework == "prime-rl" else None


@pytest.mark.parametrize("mode", [mode for mode in SMALL["modes"] if mode_options(mode)])
def test_every_mode_of_the_small_batch_is_reproduced(mode: str) -> None:
    found = mode_options(mode)
    assert found is not None
    positional, named = small(found[0], **found[1])
    reference, values, corrected = (
        SMALL["modes"][mode],
        peers.view(*positional, **named),
        peers.correction(*positional, **named),
    )
    for key, expected in reference.get("metrics", {}).items():
        assert values[key] == same(expected, SMALL_TOLERANCE), key
    if "weights" in reference:
        weights = np.broadcast_to(np.array(reference["weights"]), corrected.weights_BT.shape)
        assert corrected.weights_BT.ravel() == same(weights.ravel(), SMALL_TOLERANCE)
    if "mask" in reference:
        assert (corrected.mask_BT == np.array(reference["mask"])).all()


def array(values: Any) -> Any:
    """A padded array, or a list of arrays where rows differ in length."""
    rows = [np.array(row) for row in values] if isinstance(values[0], list) else []
    return rows if len({len(row) for row in rows}) > 1 else np.array(values)


@pytest.mark.parametrize("batch", ODD, ids=lambda batch: "+".join(view["peer"] for view in batch["views"]))
def test_broken_tokens_and_empty_sequences_in_every_mode_are_as_recorded(batch: dict[str, Any]) -> None:
    given = {name: array(value) for name, value in batch.items() if name != "views" and value is not None}
    for recorded in batch["views"]:
        values = peers.view(recorded["peer"], **given, **recorded["options"])
        assert dict(values) == same(recorded["metrics"]), recorded["options"]
        without = {name: value for name, value in given.items() if name != "reference_logprobs"}
        found = peers.correction(recorded["peer"], **without, **recorded["options"])
        assert found.weights_BT.ravel() == same(np.ravel(recorded["weights"])), recorded["options"]
        assert (found.mask_BT == np.array(recorded["mask"])).all(), recorded["options"]


def test_every_framework_with_a_view_is_in_the_reference() -> None:
    assert {peer for peer, _ in SMALL_METRICS.values()} == set(peers.PEERS)


# --- What a view takes ---

ROLLOUT = [[-1.0, -2.0, -0.5], [-0.5, -1.0, 0.0]]
TRAINER = [[-1.1, -1.8, -0.5], [-0.4, -1.5, 0.0]]
MASK = [[1, 1, 1], [1, 1, 0]]


@pytest.mark.parametrize("peer", peers.PEERS)
def test_no_sequences_give_no_numbers(peer: str) -> None:
    assert peers.view(peer, np.zeros((0, 4)), np.zeros((0, 4))) == {}


@pytest.mark.parametrize("peer", peers.PEERS)
def test_layouts_and_types_agree(peer: str) -> None:
    torch = pytest.importorskip("torch")
    expected = peers.view(peer, ROLLOUT, TRAINER, MASK)
    tensors = [torch.tensor(values, dtype=torch.float64) for values in (ROLLOUT, TRAINER, MASK)]
    assert peers.view(peer, *tensors) == same(expected)
    ragged = [[np.array(row[:length]) for row, length in zip(side, (3, 2), strict=True)] for side in (ROLLOUT, TRAINER)]
    assert peers.view(peer, *ragged) == same(expected)
    halves = [tensor.to(torch.bfloat16) for tensor in tensors[:2]]
    widened = [half.to(torch.float64) for half in halves]
    assert peers.view(peer, *halves, tensors[2]) == same(peers.view(peer, *widened, tensors[2]))


def test_short_names_and_dashboard_keys_name_the_same_number() -> None:
    values = peers.view("verl", ROLLOUT, TRAINER, MASK)
    assert values["kl"] == values["rollout_corr/kl"]
    with pytest.raises(KeyError, match="did you mean 'kl'"):
        values["rollout_corr/kll"]


@pytest.mark.parametrize(
    ("peer", "options", "message"),
    [
        ("ver", {}, "no peer 'ver'; did you mean 'verl'?"),
        ("tinker-cookbook", {}, "no peer 'tinker-cookbook'; known are verl"),
        (
            "verl",
            {"rollout_is_treshold": 2.0},
            "verl has no option 'rollout_is_treshold'; did you mean 'rollout_is_threshold'?",
        ),
        (
            "verl",
            {"rollout_is": "geometric"},
            "rollout_is='geometric' is invalid; pass one of None, 'token', 'sequence'",
        ),
        ("verl", {"rollout_is": "token", "rollout_is_threshold": "2_1"}, "the lower bound is above the upper"),
        ("verl", {"rollout_is": "token", "rollout_is_threshold": "x"}, "'x' is not a number above 0"),
        ("verl", {"rollout_rs": "seq_max_k1", "rollout_rs_threshold": 2}, "no criterion 'seq_max_k1'; did you mean"),
        ("verl", {"rollout_rs": "token_k1"}, "give one bound, or one for each of token_k1"),
        ("verl", {"rollout_is_batch_normalize": "yes"}, "is invalid; pass True or False"),
        ("trl", {"vllm_importance_sampling_clip_max": "3"}, "is invalid; pass a number or None"),
        ("slime", {"use_tis": True, "tis_level": "geometric", "tis_batch_normalize": True}, "not geometric"),
        ("slime", {"use_tis": True, "use_rs": True, "rs_trust_region": "max"}, "needs rs_tr_threshold"),
        (
            "nemo-rl",
            {"truncated_importance_sampling_ratio": 5.0, "truncated_importance_sampling_type": "icepop"},
            "needs",
        ),
        (
            "nemo-rl",
            {
                "sequence_level_importance_ratios": True,
                "truncated_importance_sampling_type": "seq-mask-tis",
                "truncated_importance_sampling_ratio": 1.002,
            },
            "one ratio per token",
        ),
        ("ms-swift", {"rollout_importance_sampling_threshold": 0}, "is invalid; pass a number above 0"),
    ],
)
def test_what_a_peer_does_not_take_is_refused(peer: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message.replace("?", r"\?")):
        peers.view(peer, ROLLOUT, TRAINER, MASK, **options)


@pytest.mark.parametrize(
    ("trainer", "message"),
    [
        ([[-1.0, -2.0]], r"trainer_logprobs: sequences have \[2\]… tokens, not \[3, 3\]…"),
        (
            [[-1.0, -2.0, -1.0], [-1.0, -2.0]],
            r"trainer_logprobs: sequences have \[3, 2\]… tokens",
        ),  # never filled with 0
        ([[-1.0, -2.0, -1.0], None], "trainer_logprobs: some tokens have none; a peer's view needs every token"),
        (None, "trainer_logprobs: some tokens have none; a peer's view needs every token"),
        (np.zeros((1, 2, 3)), "is unknown; pass"),
    ],
)
def test_arrays_that_do_not_fit_are_refused(trainer: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        peers.view("verl", ROLLOUT, trainer, MASK)


def test_a_mask_that_does_not_say_is_refused() -> None:
    with pytest.raises(InputError, match="mask contains NaN; use 0 or 1"):
        peers.view("verl", ROLLOUT, TRAINER, [[1, 1, 1], [1, 1, math.nan]])


def test_options_may_be_numbers_of_numpy() -> None:
    options = {"vllm_importance_sampling_clip_max": np.float32(2)}
    assert peers.view("trl", ROLLOUT, TRAINER, MASK, **options) == peers.view(
        "trl", ROLLOUT, TRAINER, MASK, vllm_importance_sampling_clip_max=2.0
    )
