"""The faults as data: what goes wrong in each short run, and which cause a diagnosis should name."""

from __future__ import annotations

from typing import Final

from fault_case import PROCESSED, Backlog, Case, Miss, Scale, Size, View

WARM: Final = {"temperature": 0.7}
SEMANTIC, PATH, OBJECTIVE = "semantic", "inference_path", "objective"

_HEALTHY: Final = (
    Case(
        "healthy", (), "none", "Processed log-probs at T = 0.7, updates between batches, cache cleared.", sampling=WARM
    ),
    Case(
        "healthy_top_p",
        (),
        "none",
        "Sampled with top-p 0.9; the trainer truncates its own distribution to the same nucleus.",
        sampling={"temperature": 0.7, "top_p": 0.9},
        view=View(top_p=0.9),
        received=True,
    ),
    Case("healthy_untempered", (), "none", "T = 1, raw log-probs: nothing is processed, so raw is right.", engine={}),
)

_SEMANTIC: Final = (
    Case(
        "raw_logprobs",
        ("raw_logprobs",),
        SEMANTIC,
        "vLLM's default logprobs_mode at T = 0.7; the trainer divides by the temperature.",
        engine={},
        sampling=WARM,
    ),
    Case(
        "raw_logprobs_unwatched",
        ("raw_logprobs",),
        SEMANTIC,
        "Raw log-probs at T = 0.7 again, of an engine that nobody watches: only the trainer's side is recorded.",
        engine={},
        sampling=WARM,
        received=True,
        plugin=False,
        scale=Scale(steps=8),
    ),
    Case(
        "temperature_mismatch",
        ("temperature_mismatch",),
        SEMANTIC,
        "Sampled and reported at T = 0.7; the trainer forgets the temperature.",
        sampling=WARM,
        view=View(temperature=1.0),
    ),
    Case(
        "truncated_top_p",
        ("truncated_support",),
        SEMANTIC,
        "Sampled and reported with top-p 0.9; the trainer does not truncate.",
        sampling={"temperature": 1.0, "top_p": 0.9},
    ),
    Case(
        "truncated_top_k",
        ("truncated_support",),
        SEMANTIC,
        "Sampled and reported with top-k 20; the trainer does not truncate.",
        sampling={"temperature": 1.0, "top_k": 20},
    ),
    Case(
        "truncated_min_p",
        ("truncated_support",),
        SEMANTIC,
        "Sampled and reported with min-p 0.05; the trainer does not truncate.",
        sampling={"temperature": 1.0, "min_p": 0.05},
    ),
    Case(
        "raw_logits",
        ("unnormalized_logits",),
        SEMANTIC,
        "The engine reports logits instead of log-probs.",
        engine={"logprobs_mode": "raw_logits"},
    ),
    Case(
        "processed_logits",
        ("unnormalized_logits",),
        SEMANTIC,
        "The engine reports logits, divided by the temperature, instead of log-probs.",
        engine={"logprobs_mode": "processed_logits"},
        sampling=WARM,
    ),
    Case(
        "structured_output",
        ("structured_output_mask",),
        SEMANTIC,
        "The grammar of a structured output masks the engine's logits; the trainer's softmax runs over everything.",
        sampling={"temperature": 1.0, "structured_outputs": {"regex": r"[a-z]+( [a-z]+){4,12}\."}},
    ),
    Case(
        "allowed_tokens",
        ("structured_output_mask",),
        SEMANTIC,
        "Only some tokens are allowed in the engine; the trainer's softmax runs over everything.",
        acceptable=("truncated_support",),
        sampling={"temperature": 1.0, "allowed_token_ids": [2, *range(200, 500)]},
    ),
    Case(
        "vocab_padding",
        ("vocab_padding",),
        SEMANTIC,
        "The trainer's vocabulary is padded with rows of zeros, which take probability in its softmax.",
        view=View(padded_to=768),
    ),
    Case(
        "synthetic_eos",
        ("synthetic_eos",),
        SEMANTIC,
        "Answers cut off by the length limit get an end token that was never sampled, with log-prob 0.",
        glue="append_end",
        received=True,
    ),
    Case(
        "sentinel_eos",
        ("synthetic_eos",),
        SEMANTIC,
        "The same with the sentinel −9999 where the end token's log-prob would stand.",
        acceptable=("nonfinite_logprobs",),
        glue="append_end_sentinel",
        received=True,
        scale=Scale(steps=8),
    ),
    Case(
        "misaligned_tokens",
        ("misaligned_tokens",),
        SEMANTIC,
        "The trainer reads the logits one position too late.",
        acceptable=("different_model",),
        view=View(offset=1),
    ),
    Case(
        "shifted_logprobs",
        ("misaligned_tokens",),
        SEMANTIC,
        "The rollout log-probs slip by one token on their way to the trainer.",
        glue="shift",
        received=True,
        scale=Scale(steps=8),
    ),
    Case(
        "retokenization",
        ("retokenization",),
        SEMANTIC,
        "Answers travel as text and are encoded again by the trainer, which gives other token ids.",
        glue="retokenize",
    ),
    Case(
        "nonfinite_logprobs",
        ("nonfinite_logprobs",),
        SEMANTIC,
        "The trainer truncates to a nucleus the engine does not sample from: −inf for what lies outside.",
        view=View(top_p=0.95),
    ),
    Case(
        "missing_logprobs",
        ("missing_logprobs",),
        SEMANTIC,
        "Every third request does not ask the engine for log-probs.",
        silent=3,
    ),
)

_PATH: Final = (
    Case(
        "low_precision",
        ("low_precision",),
        PATH,
        "The engine computes in bfloat16, the trainer in float32.",
        acceptable=("lm_head_precision", "batch_variance"),
        engine={**PROCESSED, "dtype": "bfloat16"},
    ),
    Case(
        "lm_head_precision",
        ("lm_head_precision",),
        PATH,
        "Everything in float32, except the trainer's last matrix product in bfloat16.",
        acceptable=("low_precision",),
        view=View(head_dtype="bfloat16"),
    ),
    Case(
        "fp8_kv_cache",
        ("quantized_rollout",),
        PATH,
        "The engine keeps keys and values in 8 bits.",
        engine={**PROCESSED, "kv_cache_dtype": "fp8"},
    ),
    Case(
        "int8_weights",
        ("quantized_rollout",),
        PATH,
        "Every matrix is rounded to 8 bits, row by row, on its way to the engine.",
        acceptable=("low_precision",),
        weight_bits=8,
    ),
    Case(
        "inflight_stale_kv",
        ("inflight_stale_kv",),
        PATH,
        "Updates while requests are in flight, which go on with the keys and values of the old weights.",
        acceptable=("staleness",),
        pause="keep",
        clear_cache=False,
        scale=Scale(learning_rate=4e-4, prompts=6, tokens=64),
    ),
    Case(
        "stale_prefix_cache",
        ("stale_prefix_cache",),
        PATH,
        "Prompts share a preamble whose keys and values stay cached from the first weights on.",
        clear_cache=False,
        scale=Scale(learning_rate=4e-4, preamble=64),
    ),
    Case(
        "missed_weight_sync",
        ("missed_weight_sync",),
        PATH,
        "From version 6 on every update loads the old weights again, while the version label advances.",
        miss=Miss(first=6),
    ),
    Case(
        "partial_weight_sync",
        ("partial_weight_sync",),
        PATH,
        "The lm_head and one layer never arrive in the engine, all other tensors do.",
        acceptable=("missed_weight_sync",),
        miss=Miss(tensors=r"lm_head|layers\.1\."),
    ),
    Case(
        "replica_divergence",
        ("replica_divergence",),
        PATH,
        "Two engines; from version 5 on one of them misses the updates.",
        acceptable=("missed_weight_sync",),
        replicas=("left", "right"),
        miss=Miss(first=5, replica="right"),
    ),
    Case(
        "moe_routing",
        ("moe_routing",),
        PATH,
        "A mixture of experts: rounding to bfloat16 in the engine sends some tokens to other experts.",
        acceptable=("low_precision",),
        engine={**PROCESSED, "dtype": "bfloat16"},
        miss=Miss(
            loads=False
        ),  # nothing is to be loaded: vLLM's CPU backend cannot reload experts, so the weights do not move
        scale=Scale(size=Size(hidden=96, layers=2, experts=8, steps=700), learning_rate=0.0),
    ),
    Case(
        "batch_variance",
        ("batch_variance",),
        PATH,
        "Both sides compute in bfloat16, in batches of different shape and by different kernels.",
        acceptable=("low_precision",),
        engine={**PROCESSED, "dtype": "bfloat16"},
        view=View(dtype="bfloat16"),
    ),
)

_OBJECTIVE: Final = (
    Case(
        "staleness",
        ("staleness",),
        OBJECTIVE,
        "A correct engine whose batches wait: up to eight versions of lag, all known.",
        backlog=Backlog(depth=8),
    ),
    Case(
        "late_growth",
        ("late_growth",),
        OBJECTIVE,
        "One step off-policy, then batches pile up from step 90 on.",
        acceptable=("staleness",),
        backlog=Backlog(depth=1, grows_from=90, grows_every=4),
        scale=Scale(steps=130, prompts=4, answers=3, tokens=16),
    ),
    Case(
        "step_jump",
        ("step_jump",),
        OBJECTIVE,
        "One step off-policy; at step 70 the learning rate is set ten times as high.",
        acceptable=("staleness",),
        backlog=Backlog(depth=1),
        jump=(70, 10.0),
        scale=Scale(steps=100, prompts=4, answers=3, tokens=16, learning_rate=1e-4),
    ),
)

_PAIRS: Final = (
    Case(
        "raw_logprobs_and_missed_sync",
        ("raw_logprobs", "missed_weight_sync"),
        SEMANTIC,
        "vLLM's default logprobs_mode at T = 0.7, and from version 6 on no update arrives.",
        engine={},
        sampling=WARM,
        miss=Miss(first=6),
    ),
    Case(
        "low_precision_and_staleness",
        ("low_precision", "staleness"),
        PATH,
        "A bfloat16 engine whose batches wait for six versions.",
        acceptable=("staleness", "low_precision"),
        engine={**PROCESSED, "dtype": "bfloat16"},
        backlog=Backlog(depth=6),
    ),
)

CASES: Final[dict[str, Case]] = {case.name: case for case in (*_HEALTHY, *_SEMANTIC, *_PATH, *_OBJECTIVE, *_PAIRS)}
