"""Adapter of verl, which needs no code: `import verl` loads it by an entry point if ``LOGPROBE_HOME`` is set.

It records v0 (`RayPPOTrainer`) before each update of the actor, and v1 (`PPOTrainer`) after its advantages. Both are
recorded in the process that drives training, as whole batches, independent of the workers' parallelism. Records contain
sampled tokens, the mask before rejection, the log-probs of engine and trainer, entropy, rewards, advantages, prompt
groups and weight versions. verl's own scalars are recorded per step, under the step of verl's log. In bypass mode verl
computes no log-probs. The adapter then records only the engine's side and reports this in a health record.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import Any, Final
from weakref import WeakKeyDictionary, WeakSet

from logprobe.collectors.correction import Correction, CorrectionConfig, correct
from logprobe.collectors.integrations.correcting import Corrector, Divisor, corrector_if_wanted, unmet
from logprobe.collectors.integrations.hf_trainer import mark_weights
from logprobe.collectors.integrations.imports import when_imported
from logprobe.collectors.integrations.wrapping import Process, record_rollout, setting_of, settings_of, version_of
from logprobe.collectors.recorder.recorder import Recorder

V0: Final = "verl.trainer.ppo.ray_trainer"
V1: Final = "verl.trainer.ppo.v1.trainer_base"
TRACKING: Final = "verl.utils.tracking"
V0_METHODS: Final[dict[str, tuple[str, ...]]] = {
    "fit": (),
    "_compute_old_log_prob": ("batch",),
    "_update_actor": ("batch",),
}
V1_METHODS: Final[dict[str, tuple[str, ...]]] = {
    "_setup": (),
    "fit": (),
    "_compute_advantage": ("batch", "metrics"),
}
# Losses that multiply each token's term by its weight; in the others the weights do something else, or nothing.
_WEIGHTED: Final = {"vanilla", "gspo", "sapo", "gpg", "clip_cov", "kl_cov", "cispo", "dro", "dppo_tv", "dppo_kl"}
_DIVISORS: Final[dict[str, Divisor]] = {"token-mean": "update", "seq-mean-token-mean": "sequence"}
_EVALUATION: Final = ("val-", "val/", "validation/")
_ROLLOUT: Final = ("temperature", "top_p", "top_k")
_SETTINGS: Final = {
    "actor_rollout_ref.actor": (
        "strategy",
        "ppo_mini_batch_size",
        "ppo_epochs",
        "clip_ratio",
        "clip_ratio_low",
        "clip_ratio_high",
        "loss_agg_mode",
        "entropy_coeff",
        "use_kl_loss",
        "kl_loss_coef",
    ),
    "actor_rollout_ref.actor.optim": ("lr",),
    "actor_rollout_ref.actor.megatron.router_replay": ("mode",),
    "actor_rollout_ref.rollout": (
        "name",
        "mode",
        "n",
        "calculate_log_probs",
        "temperature",
        "top_p",
        "top_k",
        "dtype",
        "enforce_eager",
        "logprobs_mode",
        "enable_prefix_caching",
        "quantization",
        "full_determinism",
        "enable_rollout_routing_replay",
    ),
    "algorithm": ("adv_estimator", "use_kl_in_reward", "rollout_correction"),
    "trainer": ("use_v1", "n_gpus_per_node", "nnodes"),
    "trainer.v1": ("trainer_mode",),
    "trainer.v1.sampler": ("max_off_policy_threshold",),
    "trainer.v1.separate_async": ("parameter_sync_step",),
}


_FETCHED: Final = [
    "responses", "response_mask", "rollout_log_probs", "old_log_probs", "ref_log_prob", "entropy", "rm_scores",
]  # fmt: skip
_NEEDED: Final = ["responses", "response_mask", "old_log_probs"]  # that records need; the last one not in bypass mode
_REGISTERED: Final[list[Any]] = []


def register() -> None:
    """Record verl's trainers after the import of their modules. `import verl` calls this through the entry point."""
    if _REGISTERED:
        return
    watch = _Watch()
    _REGISTERED.append(watch)
    when_imported(V0, watch.v0)
    when_imported(V1, watch.v1)
    when_imported(TRACKING, watch.tracking)


def register_from(_: ModuleType) -> None:
    """Register for `logprobe run`, if the entry point was not used."""
    register()


class _Watch:
    """State between verl's methods in one process."""

    def __init__(self) -> None:
        self._process = Process("verl", title=f"verl {version_of('verl')}")
        self._corrector: Corrector | None = None
        # Trainer → a batch before the update.
        self._before: WeakKeyDictionary[Any, tuple[Any, ...]] = WeakKeyDictionary()
        self._begun: WeakSet[Any] = WeakSet()
        self._tq: Any = None  # v1's queue of tensors

    # --- Modules of verl ---

    def v0(self, module: ModuleType) -> None:
        """Wrap `RayPPOTrainer` and thereby every subclass that calls its methods."""
        trainer = module.RayPPOTrainer
        if self._process.knows(trainer, V0_METHODS):
            self._process.before(trainer, "fit", self._begin)
            self._process.after(trainer, "fit", self._ended)
            self._process.after(trainer, "_compute_old_log_prob", self._computed_v0)
            self._process.before(trainer, "_update_actor", self._updating_v0)

    def v1(self, module: ModuleType) -> None:
        """Wrap `PPOTrainer` of v1."""
        self._tq = module.tq
        trainer = module.PPOTrainer
        if self._process.knows(trainer, V1_METHODS):
            self._process.after(trainer, "_setup", lambda _, host: self._begin(host))
            self._process.around(trainer, "_compute_advantage", self._fetch_v1, self._advantages_v1)
            self._process.after(trainer, "fit", self._ended)

    def tracking(self, module: ModuleType) -> None:
        """Wrap the logger of both trainers."""
        if self._process.knows(module.Tracking, {"log": ("data", "step")}):
            self._process.after(module.Tracking, "log", self._logged)

    # --- A trainer begins ---

    def _begin(self, trainer: Any, *_: Any, **__: Any) -> Recorder | None:
        recorder = self._process.begin(
            setting_of(trainer.config, "trainer.experiment_name"),
            trainer=type(trainer).__name__,
            config=lambda: _configuration(trainer),
        )
        if recorder is None or trainer in self._before:
            return recorder
        self._before[trainer] = ()
        self._corrector = corrector_if_wanted(recorder, "verl")
        manager = getattr(trainer, "checkpoint_manager", None)
        if callable(getattr(manager, "update_weights", None)):
            self._process.after(manager, "update_weights", self._sent)
        return recorder

    def _ended(self, *_: Any, **__: Any) -> None:
        """Make all records durable, because Ray kills the training process at the end of its work."""
        self._process.flush()

    def _sent(self, _: Any, global_steps: Any = None, *__: Any, **___: Any) -> None:
        if global_steps is not None and self._process.recorder is not None:
            mark_weights(self._process.recorder, int(global_steps))

    def _logged(self, _: Any, __: Any, data: Mapping[str, Any], step: int, *___: Any, **____: Any) -> None:
        self._process.scalars(step, data, without=_EVALUATION)

    # --- v0: padded tensors in a DataProto ---

    def _computed_v0(self, result: Any, trainer: Any, batch: Any) -> None:
        """Store entropy and mask before verl drops the entropy and rejects tokens from the mask."""
        if self._begin(trainer) is not None:
            output = result[0] if isinstance(result, tuple) else result
            self._before[trainer] = (
                batch.batch["responses"],
                batch.batch["response_mask"],
                output.batch.get("entropys"),
            )

    def _updating_v0(self, trainer: Any, batch: Any) -> None:
        recorder = self._begin(trainer)
        if recorder is None:
            return
        columns, labels = batch.batch, batch.non_tensor_batch
        expected = _NEEDED[:-1] if _bypassed(trainer) else _NEEDED
        step = int(trainer.global_steps)
        if not self._process.has(columns, expected, step):
            return
        if not self._process.has(labels, ["uid"], step, lost=len(columns["responses"])):
            return
        mask, entropy = self._same_rows(trainer, columns)
        groups = [str(uid) for uid in labels["uid"]]
        rewards = columns.get("token_level_scores")
        rows = {
            "sample_ids": _numbered(step, groups),
            "prompt_ids": groups,
            "token_ids": columns["responses"],
            "rollout_logprobs": columns.get("rollout_log_probs"),
            "trainer_logprobs": columns["old_log_probs"],
            "mask": mask,
            "reference_logprobs": columns.get("ref_log_prob"),
            "entropy": entropy,
            "advantages": columns.get("advantages"),
            "rewards": None if rewards is None else rewards.sum(-1),
        }
        versions = _spans(labels.get("min_global_steps"), labels.get("max_global_steps"), len(groups))
        self._record(trainer, step, versions, rows)

        def made(config: CorrectionConfig) -> tuple[Correction, Any]:
            sides = (rows["rollout_logprobs"], rows["trainer_logprobs"], mask)
            correction = correct(config, *sides, advantages=rows["advantages"])
            columns["rollout_is_weights"] = correction.weights
            columns["response_mask"] = correction.denominator_mask
            return correction, correction.weights

        self._correct(trainer, step, _divisor(trainer), rows, made)

    def _same_rows(self, trainer: Any, columns: Any) -> tuple[Any, Any]:
        """Return the mask before rejection and the entropy, both [batch, time], if they belong to these rows."""
        before, self._before[trainer] = self._before[trainer], ()
        if before and before[0].shape == columns["responses"].shape and bool((before[0] == columns["responses"]).all()):
            return before[1], before[2]
        return columns["response_mask"], None

    # --- v1: nested tensors in a queue ---

    def _fetch_v1(self, trainer: Any, batch: Any, *_: Any, **__: Any) -> None:
        """Store rows before rejection."""
        if self._begin(trainer) is not None:
            self._before[trainer] = (self._fetched(batch, _FETCHED),)

    def _fetched(self, batch: Any, fields: list[str]) -> Any:
        return self._tq.kv_batch_get(keys=batch.keys, partition_id=batch.partition_id, select_fields=fields)

    def _advantages_v1(self, _: Any, trainer: Any, batch: Any, *__: Any) -> None:
        before, self._before[trainer] = self._before.get(trainer, ()), ()
        if not before:
            return
        keep = [index for index, tag in enumerate(batch.tags) if not tag.get("is_padding", False)]
        expected = _NEEDED[:-1] if _bypassed(trainer) else _NEEDED
        step = int(trainer.global_steps)
        if not self._process.has(before[0], expected, step, lost=len(keep)):
            return
        data, advantages = before[0], self._fetched(batch, ["advantages"])
        rows: dict[str, Any] = {
            "token_ids": _rows(data, "responses", keep),
            "rollout_logprobs": _rows(data, "rollout_log_probs", keep),
            "trainer_logprobs": _rows(data, "old_log_probs", keep),
            "mask": _rows(data, "response_mask", keep),
            "reference_logprobs": _rows(data, "ref_log_prob", keep),
            "entropy": _rows(data, "entropy", keep),
            "advantages": _rows(advantages, "advantages", keep),
        }
        scores = _rows(data, "rm_scores", keep)
        rows["rewards"] = None if scores is None else [float(row.sum()) for row in scores]
        tags = [batch.tags[index] for index in keep]
        rows["sample_ids"] = [str(batch.keys[index]) for index in keep]
        rows["prompt_ids"] = [name.rsplit("_", 2)[0] for name in rows["sample_ids"]]
        first, last = ([tag.get(name) for tag in tags] for name in ("min_global_steps", "max_global_steps"))
        self._record(trainer, step, _spans(first, last, len(keep)), rows)
        divisor = _divisor(trainer)
        # v1's workers count tokens in a mask of their own, which no rejection changes.
        self._correct(
            trainer,
            step,
            None if divisor == "update" else divisor,
            rows,
            lambda config: self._made_v1(batch, config, data),
        )

    def _made_v1(self, batch: Any, config: CorrectionConfig, data: Any) -> tuple[Correction, Any]:
        """Write weights and mask of the whole batch, padding included, into verl's queue."""
        import torch  # noqa: PLC0415 - verl has loaded both
        from tensordict import TensorDict  # noqa: PLC0415

        rollout, old, mask = (_rows(data, name) for name in ("rollout_log_probs", "old_log_probs", "response_mask"))
        advantages = _rows(self._fetched(batch, ["advantages"]), "advantages")
        correction = correct(config, rollout, old, mask, advantages=advantages)
        columns = {"rollout_is_weights": correction.weights, "response_mask": correction.denominator_mask}
        nested = {
            name: torch.nested.as_nested_tensor(list(rows), layout=torch.jagged) for name, rows in columns.items()
        }
        fields = TensorDict(nested, batch_size=len(batch))
        self._tq.kv_batch_put(keys=batch.keys, partition_id=batch.partition_id, fields=fields)
        return correction, correction.weights

    # --- Both ---

    def _record(self, trainer: Any, step: int, versions: list[int | None], rows: Mapping[str, Any]) -> None:
        recorder = self._process.recorder
        if recorder is None:
            return
        if _bypassed(trainer):
            if rows["rollout_logprobs"] is not None:
                named = {name: setting_of(trainer.config, f"actor_rollout_ref.rollout.{name}") for name in _ROLLOUT}
                record_rollout(
                    recorder,
                    rows["mask"],
                    token_ids=rows["token_ids"],
                    logprobs=rows["rollout_logprobs"],
                    sample_ids=rows["sample_ids"],
                    prompt_ids=rows["prompt_ids"],
                    weight_version=versions,
                    sampling={name: value for name, value in named.items() if value is not None},
                )
            words = (
                "bypass mode: verl computes no log-probs of its own before the update, so nothing can be compared with "
                "the engine's"
            )
            self._process.incomparable(step, words)
            return
        if trainer not in self._begun:
            self._begun.add(trainer)
            recorder.begins(step)
        # Step s trains on log-probs of the weights that step s - 1 left.
        recorder.training(step=step, weight_version=int(trainer.global_steps) - 1, rollout_versions=versions, **rows)

    def _correct(
        self,
        trainer: Any,
        step: int,
        divisor: Divisor,
        rows: Mapping[str, Any],
        make: Callable[[CorrectionConfig], tuple[Correction, Any]],
    ) -> None:
        """Correct the batch of `rows` if a correction applies. `make` writes the result into verl's batch."""
        if self._corrector is None:
            return

        def impossible(config: CorrectionConfig) -> str | None:
            if _bypassed(trainer):
                return "verl runs in bypass mode, where there are no weights to set: set bypass_mode=false"
            if (loss := _loss_mode(trainer)) not in _WEIGHTED:
                return f"what loss_mode={loss!r} does with importance weights is not known"
            if problem := unmet(config, divisor=divisor, parts=1):
                return problem
            missing = rows["rollout_logprobs"] is None
            return "the engine's log-probs are missing: set calculate_log_probs=true" if missing else None

        self._corrector.weights(step, impossible, make)


def _loss_mode(trainer: Any) -> str:
    return setting_of(trainer.config, "actor_rollout_ref.actor.policy_loss.loss_mode") or "vanilla"


def _divisor(trainer: Any) -> Divisor:
    """Return the configured divisor. SAPO always uses the mean of each sequence, which a replaced mask also yields."""
    return _DIVISORS.get(setting_of(trainer.config, "actor_rollout_ref.actor.loss_agg_mode") or "token-mean")


def _spans(first: Any, last: Any, count: int) -> list[int | None]:
    """Return the version that sampled each sequence, or None if it changed during sampling."""
    if first is None or last is None:
        return [None] * count
    return [int(a) if a is not None and a == b else None for a, b in zip(first, last, strict=True)]


def _numbered(step: int, groups: Sequence[str]) -> list[str]:
    """Return a name per sequence: the prompt's name, which verl draws again for each batch, and a number."""
    seen: Counter[str] = Counter()
    names = []
    for group in groups:
        names.append(f"verl-{step}-{group}-{seen[group]}")
        seen[group] += 1
    return names


def _rows(data: Any, name: str, keep: Sequence[int] | None = None) -> list[Any] | None:
    """Return one tensor per sequence in `keep`, or None if verl lacks the field."""
    if name not in data.keys():  # noqa: SIM118 - a TensorDict is no dictionary
        return None
    rows = list(data[name].unbind())
    return rows if keep is None else [rows[index] for index in keep]


def _bypassed(trainer: Any) -> bool:
    return bool(setting_of(trainer.config, "algorithm.rollout_correction.bypass_mode"))


def _configuration(trainer: Any) -> dict[str, object]:
    """Return the trainer's configuration document. Names of nested settings are joined by dots."""
    config = trainer.config
    settings = settings_of(config, _SETTINGS)
    correction = settings.pop("algorithm.rollout_correction")
    settings |= {f"algorithm.rollout_correction.{name}": value for name, value in dict(correction or {}).items()}
    return {
        "framework": "verl",
        "framework_version": version_of("verl"),
        "trainer": type(trainer).__name__,
        "temperature": setting_of(config, "actor_rollout_ref.rollout.temperature"),
        "compute_dtype": setting_of(config, "actor_rollout_ref.actor.fsdp_config.dtype"),
        **{name: value for name, value in settings.items() if value is not None},
    }
