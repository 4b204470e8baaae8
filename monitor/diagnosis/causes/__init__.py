"""All causes, in the order in which they are ruled out: semantic, inference path, objective.

The documentation's table is made from these declarations.
"""

from __future__ import annotations

from functools import partial
from types import MappingProxyType
from typing import Final

from logprobe.monitor.diagnosis.causes import (
    alignment,
    arrival,
    broken,
    distribution,
    fingerprints,
    policy,
    precision,
    replay,
    updates,
)
from logprobe.monitor.diagnosis.causes.cause import Cause, Kind

_semantic = partial(Cause, layer="semantic")
_inference_path = partial(Cause, layer="inference_path")
_objective = partial(Cause, layer="objective")

_SEMANTIC: Final = (
    _semantic(
        name="raw_logprobs",
        words="The engine reports log-probs from before temperature and penalties, and samples after them.",
        looks_at="logprobs_mode and sampling params; E[ρ] ≠ 1 while E[1/ρ] = 1; likely tokens all sharper at the "
        "trainer",
        fix='vLLM: `--logprobs-mode processed_logprobs` (`LLM(logprobs_mode="processed_logprobs")`).',
        rule=distribution.raw_logprobs,
        explain=distribution.without_scale,
    ),
    _semantic(
        name="temperature_mismatch",
        words="The trainer scales its logits by another temperature than the engine samples with.",
        looks_at="temperatures of both sides; E[ρ] = 1 while E[1/ρ] ≠ 1; likely tokens all sharper at the engine",
        fix="Trainer: divide the logits by the sampling temperature before log_softmax (`logits / temperature`), or "
        "sample at temperature 1.",
        rule=distribution.temperature_mismatch,
        explain=distribution.without_scale,
    ),
    _semantic(
        name="truncated_support",
        words="One side renormalises over a nucleus (top-p, top-k, min-p), the other does not.",
        looks_at="sampling params; d of one sign, at most −ln(top_p) in size; log-probs of exactly 0",
        fix="Sample with `top_p=1, top_k=0, min_p=0` (SamplingParams; check the model's generation_config.json, or "
        "pass "
        "`--generation-config vllm`), or apply the same truncation to the trainer's logits.",
        rule=distribution.truncated_support,
        explain=distribution.without_scale,
    ),
    _semantic(
        name="unnormalized_logits",
        words="The engine reports logits instead of log-probs.",
        looks_at="logprobs_mode; share of positive values",
        fix="vLLM: `--logprobs-mode processed_logprobs` instead of raw_logits or processed_logits.",
        rule=broken.unnormalized_logits,
        hides=True,
    ),
    _semantic(
        name="structured_output_mask",
        words="A grammar or a list of allowed tokens masks the engine's logits, and not the trainer's.",
        looks_at="sampling params; d of one sign, further than any truncation; log-probs of exactly 0",
        fix="Apply the same token mask to the trainer's logits before log_softmax, or leave constrained requests "
        "(`structured_outputs`, "
        "`allowed_token_ids`) out of the loss.",
        rule=distribution.structured_output_mask,
        explain=distribution.without_scale,
    ),
    _semantic(
        name="vocab_padding",
        words="Padded vocabulary rows take probability in one side's softmax.",
        looks_at="d of one sign although nothing is truncated",
        fix="Cut the padded rows off before log_softmax: `logits[..., :len(tokenizer)]` (Megatron: "
        "`make-vocab-size-divisible-by` pads).",
        rule=distribution.vocab_padding,
        explain=distribution.without_scale,
    ),
    _semantic(
        name="synthetic_eos",
        words="An end token that the engine did not sample was appended, with a placeholder as its log-prob.",
        looks_at="placeholders (0, −9999, missing) at the last token of sequences and nowhere else",
        fix='Mask appended end tokens out of the loss, or do not append them to answers with finish_reason "length".',
        rule=broken.synthetic_eos,
        explain=broken.without_ends,
        left_out=True,
    ),
    _semantic(
        name="misaligned_tokens",
        words="One side's log-probs are indexed at another position than the other's.",
        looks_at="correlation of r and t near 0; correlation after a shift",
        fix="Trainer: the log-prob of token i comes from the logits at i − 1 (`logits[:, :-1]` against `ids[:, 1:]`); "
        "check padding side and "
        "prompt length.",
        rule=alignment.misaligned_tokens,
        hides=True,
    ),
    _semantic(
        name="different_model",
        words="Engine and trainer do not score the same text with the same weights.",
        looks_at="K3 beyond every setup in the table, from the first step or from one step to the next; correlation of "
        "r and t",
        fix="Compare model path, revision, adapters and chat template of both sides, then token ids and log-probs of "
        "one prompt (that of token i "
        "comes from the logits at i − 1); "
        "`logprobe bisect --only-score` says which side departs from the model as it was published.",
        rule=alignment.different_model,
        hides=True,
    ),
    _semantic(
        name="retokenization",
        words="The trainer's token ids are not those the engine sampled.",
        looks_at="token ids of both records",
        fix="Pass the engine's token ids to the trainer (`return_token_ids`, `CompletionOutput.token_ids`) instead of "
        "encoding its text again.",
        rule=alignment.retokenization,
        left_out=True,
    ),
    _semantic(
        name="nonfinite_logprobs",
        words="Log-probs are NaN, infinite or placeholders for these.",
        looks_at="counts of broken tokens by kind",
        fix="Find what masks or overflows: a truncation or grammar on one side only gives −inf; vLLM's HTTP server "
        "writes −9999 for it. Mask "
        "these tokens out of the loss until then.",
        rule=broken.nonfinite_logprobs,
        left_out=True,
    ),
    _semantic(
        name="missing_logprobs",
        words="Rollout log-probs of some tokens never arrived.",
        looks_at="sequences without r beside sequences with it",
        fix="Ask for them in every request (`SamplingParams(logprobs=0)`, HTTP: `logprobs=0`), and record the same "
        "sample id on both sides.",
        rule=broken.missing_logprobs,
        left_out=True,
    ),
    _semantic(
        name="miscalibrated_logprobs",
        words="The log-probs reported are not those of the distribution sampled from, and no other rule names why.",
        looks_at="E[ρ] ≠ 1 by more than noise of this size makes, over the run or today",
        fix="Find what changes probabilities between the engine's sampler and what it reports, or between its logits "
        "and the trainer's: a "
        "temperature, a bias, a penalty, an adapter or a mask on one side only.",
        rule=distribution.miscalibrated_logprobs,
        explain=distribution.without_offset,
    ),
)

_INFERENCE_PATH: Final = (
    _inference_path(
        name="stale_prefix_cache",
        words="The prefix cache keeps keys and values of older weights across weight updates.",
        looks_at="requests with and without cached prompt tokens; whether updates cleared the cache",
        fix="Call `reset_prefix_cache(reset_running_requests=True)` after every weight update (without it nothing is "
        "cleared while requests run; "
        "HTTP: `POST /reset_prefix_cache?reset_running_requests=true`, served with `VLLM_SERVER_DEV_MODE=1`), or "
        "`--no-enable-prefix-caching`.",
        rule=updates.stale_prefix_cache,
        explain=updates.without_cached,
        contrast=updates.cached_or_not,
    ),
    _inference_path(
        name="inflight_stale_kv",
        words="Requests in flight continue after a weight update with keys and values of the old weights.",
        looks_at="tokens after a switch of the weight version against others of the same version; pause mode",
        fix='`pause_generation(mode="abort", clear_cache=True)` (or "wait") at weight updates; with mode "keep" also '
        "clear the cache, so that "
        "requests are recomputed.",
        rule=updates.inflight_stale_kv,
        explain=updates.without_in_flight,
        contrast=updates.in_flight_or_not,
    ),
    _inference_path(
        name="replica_divergence",
        words="One engine replica computes something else than the others.",
        looks_at="fingerprints of the weights; K3 by replica at the same declared version",
        fix="Restart the replica with the others' configuration and weights; check that it is in the weight-transfer "
        "group (`logprobe parity`).",
        rule=updates.replica_divergence,
        explain=updates.without_replica,
        contrast=updates.replica_or_others,
    ),
    _inference_path(
        name="partial_weight_sync",
        words="Some tensors of a weight update do not arrive.",
        looks_at="fingerprints of the weights; numbers of tensors and checksums of updates",
        fix="Send every parameter: compare the names sent with `model.named_parameters()`, tied and stacked ones "
        "(lm_head, qkv_proj, "
        "gate_up_proj) and buffers included.",
        rule=arrival.partial_weight_sync,
        never_arrives=True,
    ),
    _inference_path(
        name="missed_weight_sync",
        words="The engine samples from old weights, although its version label says otherwise.",
        looks_at="fingerprints of the weights; a lasting rise of mean |d| at a step, or K3 of some steps or versions "
        "against those around them, among tokens of the trainer's own version; "
        "labels without a load",
        fix="Check that the weight transfer returns before generation continues and that its result is loaded: compare "
        "one tensor's checksum on both "
        "sides after an update.",
        rule=arrival.missed_weight_sync,
        explain=arrival.without_missed,
        never_arrives=True,
    ),
    _inference_path(
        name="version_conflict",
        words="Engine and trainer state different weight versions of the same tokens.",
        looks_at="the versions in the engine's records against `rollout_versions=`, token by token",
        fix="Compare the versions of one sequence (`version_source`, `spans`, `rollout_versions` of the view "
        "sequences). If the engine's is older, an "
        "update was not applied or not marked: call `weights.mark(version)` once new weights are in place. If it is "
        "newer, the trainer's was taken "
        "when the request was sent: pass the version of each token or turn.",
        rule=arrival.version_conflict,
    ),
    _inference_path(
        name="trainer_not_deterministic",
        words="The trainer computes the same token differently each time.",
        looks_at="the same tokens after the same prompt and weights at both sides; dropout in the trainer's "
        "configuration; K3 above its row",
        fix="Compute the trainer's log-probs in evaluation mode (`model.eval()`, all dropout 0: `attention_dropout`, "
        "`hidden_dropout`, `lora_dropout`), "
        "then set it back to train mode.",
        rule=precision.trainer_not_deterministic,
        steady=True,
    ),
    _inference_path(
        name="version_reused",
        words="One weight version names different weights.",
        looks_at="fingerprints of the weights under each version, in each engine and at the trainer",
        fix="Give every update its own version: `weights.mark(version)` with a number that grows also across restarts "
        "and rollbacks.",
        rule=fingerprints.version_reused,
        kind="note",
    ),
    _inference_path(
        name="unannounced_weights",
        words="Weights in the engine are overwritten in place without a mark.",
        looks_at="fingerprints of the weights that change without a load, a label or a mark",
        fix="Call `weights.mark(version)` right after the weights were written, before generation continues.",
        rule=fingerprints.unannounced_weights,
        kind="note",
    ),
    _inference_path(
        name="quantized_rollout",
        words="The engine's weights, activations or KV cache have fewer bits than the trainer's.",
        looks_at="quantization and kv_cache_dtype; steady, calibrated noise above what bfloat16 makes",
        fix="`--kv-cache-dtype auto` and no `--quantization`, or train with the same quantisation (matched FP8) and "
        "correct by importance sampling.",
        rule=precision.quantized_rollout,
        kind="noise",
    ),
    _inference_path(
        name="replay_broken",
        words="The engine's expert routes are replayed in the trainer on the wrong tokens.",
        looks_at="routes as both sides recorded them: exact in some ranks or turns only, or found again at another "
        "token",
        fix="Compare `routes` of one sequence on both sides: route i belongs to the token that position i - 1 "
        "predicts; cut padding before, and join "
        "turns and ranks in the order of the tokens.",
        rule=replay.replay_broken,
    ),
    _inference_path(
        name="replay_off",
        words="The engine returns expert routes, and the trainer does not use them.",
        looks_at="routes as both sides recorded them: nearly equal everywhere and exact nowhere",
        fix="Hand the engine's routes to the trainer's router (routing replay), or stop returning them "
        "(`enable_return_routed_experts`).",
        rule=replay.replay_off,
        kind="note",
    ),
    _inference_path(
        name="moe_routing",
        words="Rounding sends tokens to other experts in the engine than in the trainer.",
        looks_at="architecture; share of K3 that 1 % of the tokens make",
        fix="Replay the engine's routes in the trainer (`--enable-return-routed-experts`), or compute the router in "
        "float32 on both sides.",
        rule=precision.moe_routing,
        kind="noise",
    ),
    _inference_path(
        name="batch_variance",
        words="Log-probs depend on what else is in the batch.",
        looks_at="the same tokens after the same prompt and weights, computed in different batches",
        fix="`VLLM_BATCH_INVARIANT=1` in the engine, batch-invariant kernels or a fixed batch shape in the trainer.",
        rule=precision.batch_variance,
        kind="noise",
    ),
    _inference_path(
        name="lm_head_precision",
        words="The last matrix product is in a 16-bit dtype on one side only.",
        looks_at="steady noise that is the same in every batch, with an engine in float32",
        fix='Compute logits in float32 on both sides: trainer `lm_head.float()`, vLLM `--hf-overrides \'{"head_dtype": '
        '"float32"}\'`.',
        rule=precision.lm_head_precision,
        kind="noise",
    ),
    _inference_path(
        name="low_precision",
        words="One side computes, or stores log-probs, in a 16-bit dtype.",
        looks_at="dtypes in the configuration; grid of the values; steady, calibrated noise",
        fix="`--dtype float32` for the engine where it can be afforded, `--dtype float16` on both sides, or at least "
        "the lm_head in float32 "
        '(`--hf-overrides \'{"head_dtype": "float32"}\'`) and log-probs kept in float32.',
        rule=precision.low_precision,
        kind="noise",
    ),
)

_OBJECTIVE: Final = (
    _objective(
        name="late_growth",
        words="K3 grew, step by step, after it had been steady.",
        looks_at="K3 against its own frozen baseline; ramp rather than jump",
        fix="Masked importance sampling now; then a lower learning rate, fewer steps off-policy, or back to a "
        "checkpoint from before the growth.",
        rule=policy.late_growth,
        fix_corrected="A lower learning rate, fewer steps off-policy, or back to a checkpoint from before the growth.",
        kind="growth",
    ),
    _objective(
        name="step_jump",
        words="K3 jumped at one step and stayed up.",
        looks_at="K3 before and after the step; jump rather than ramp",
        fix="Look at what changed at that step (learning rate, batch, reward scale); lower the learning rate or clip "
        "the gradient norm.",
        rule=policy.step_jump,
        kind="growth",
    ),
    _objective(
        name="staleness",
        words="Tokens were sampled by weights older than the trainer's.",
        looks_at="K3 of tokens by their weight lag",
        fix="Bound the lag (fewer batches in front of the trainer, a limit on asynchronous steps), and correct by "
        "importance sampling (TIS or MIS).",
        rule=policy.staleness,
        explain=policy.without_lag,
        fix_corrected="Bound the lag (fewer batches in front of the trainer, a limit on asynchronous steps).",
        kind="lag",
    ),
)

CAUSES: Final[tuple[Cause, ...]] = (*_SEMANTIC, *_INFERENCE_PATH, *_OBJECTIVE)
BY_NAME: Final = MappingProxyType({cause.name: cause for cause in CAUSES})


def kind_of(name: str) -> Kind | None:
    """The kind of a cause that a stored document names; None: there is no such cause, or no longer."""
    return BY_NAME[name].kind if name in BY_NAME else None


__all__ = ["BY_NAME", "CAUSES", "Cause", "kind_of"]
