"""Setup of engine and trainer from their configuration records."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

KINDS: Final = ("engine_config", "sampling_params", "trainer_config")
LOW_DTYPES: Final = ("bfloat16", "bf16", "float16", "fp16", "half")
HALF_DTYPES: Final = ("float16", "fp16", "half")
FULL_DTYPES: Final = ("float32", "fp32", "float", "32", "32-true")
_TRAINER_DTYPE: Final = ("logprob_dtype", "compute_dtype", "dtype", "torch_dtype", "precision", "mixed_precision")
# Settings by which a framework promises equal bits at engine and trainer: slime and miles, NeMo-RL.
_CLAIMS: Final = ("true_on_policy_mode", "zero_train_gen_mismatch")
# Values that penalise nothing.
_PENALTIES: Final = {"presence_penalty": 0.0, "frequency_penalty": 0.0, "repetition_penalty": 1.0}


@dataclass(frozen=True)
class Setup:
    """Configuration documents of a run.

    Attributes:
        engines: one summary per engine configuration, see `logprobe.collectors.vllm.config`.
        samplings: fingerprint → effective sampling params that were used.
        trainer: trainer's document with keys flattened by dots, empty if none was recorded.
    """

    engines: tuple[Mapping[str, Any], ...] = ()
    samplings: Mapping[str, Mapping[str, Any]] | None = None
    trainer: Mapping[str, Any] | None = None

    def engine(self, key: str) -> tuple[Any, ...]:
        """Return the distinct values of a setting among the engines, without nulls."""
        return _distinct(engine.get(key) for engine in self.engines)

    def sampling(self, key: str) -> tuple[Any, ...]:
        """Return the distinct values of a sampling parameter, without nulls."""
        return _distinct(params.get(key) for params in (self.samplings or {}).values())

    @property
    def logprobs_mode(self) -> str | None:
        """Common mode of the engines, or None if it is unknown or differs."""
        modes = self.engine("logprobs_mode")
        return modes[0] if len(modes) == 1 else None

    @cached_property
    def raw(self) -> bool | None:
        """True if log-probs are reported before temperature and truncation, or None if unknown."""
        return None if self.logprobs_mode is None else self.logprobs_mode.startswith("raw")

    @property
    def temperatures(self) -> tuple[float, ...]:
        """Sampling temperatures, without 0 for greedy sampling, which has no distribution."""
        return tuple(float(value) for value in self.sampling("temperature") if value)

    @property
    def trainer_temperature(self) -> float | None:
        """Divisor of the trainer's logits, or None if not recorded."""
        return self._trainer_number("temperature")

    def _trainer_number(self, name: str) -> float | None:
        # Not any nested key of that name: `rollout.temperature` is the engine's.
        values = [(self.trainer or {}).get(f"{part}{name}") for part in ("", "trainer.", "actor.", "logprobs.")]
        return next((float(v) for v in values if isinstance(v, int | float) and not isinstance(v, bool)), None)

    @property
    def truncations(self) -> Mapping[str, float]:
        """Parameters that truncate the sampling distribution, with their strongest value."""
        cuts: dict[str, float] = {}
        top_p = [float(v) for v in self.sampling("top_p") if v < 1]
        top_k = [float(v) for v in self.sampling("top_k") if v > 0]
        min_p = [float(v) for v in self.sampling("min_p") if v > 0]
        for name, values, strongest in (("top_p", top_p, min), ("top_k", top_k, min), ("min_p", min_p, max)):
            if values:
                cuts[name] = strongest(values)
        return cuts

    @property
    def masks_replayed(self) -> bool:
        """True if all engines return their sampling masks and the trainer states that it renormalises over them."""
        trainer = self.trainer or {}
        stated = any(trainer.get(f"{part}sampling_mask") is True for part in ("", "trainer.", "actor.", "logprobs."))
        return stated and self.engine("return_sampling_mask") == (True,)

    @property
    def penalties(self) -> Mapping[str, float]:
        """Penalties in use, which change the sampling distribution like a temperature."""
        used = {name: [v for v in self.sampling(name) if v != none] for name, none in _PENALTIES.items()}
        return {name: float(values[0]) for name, values in used.items() if values}

    @property
    def structured(self) -> frozenset[str]:
        """Fingerprints of sampling params with a grammar or a list of allowed tokens."""
        keys = ("structured_outputs", "allowed_token_ids")
        return frozenset(name for name, p in (self.samplings or {}).items() if any(p.get(key) for key in keys))

    @property
    def engine_low_dtype(self) -> str | None:
        """Engine's dtype if it has 16 bits, or None."""
        return next((dtype for dtype in self.engine("dtype") if str(dtype).lower() in LOW_DTYPES), None)

    @property
    def trainer_dtype(self) -> str | None:
        """Dtype of the trainer's log-probs according to the trainer."""
        trainer = self.trainer or {}
        return next((str(trainer[key]).lower() for key in _TRAINER_DTYPE if trainer.get(key)), None)

    @property
    def head_dtype(self) -> str | None:
        """Dtype of the engine's last matrix product, or None if not recorded."""
        return next((str(dtype).lower() for dtype in self.engine("head_dtype")), None)

    @property
    def trainer_full_precision(self) -> bool | None:
        """True if the trainer computes in float32, or None if not recorded."""
        return None if self.trainer_dtype is None else self.trainer_dtype in FULL_DTYPES

    @property
    def bits_may_agree(self) -> bool:
        """True if two computations can give equal bits: claimed, batch-invariant kernels, or float32 on both sides."""
        dtypes = self.engine("dtype")
        full = bool(dtypes) and all(str(dtype).lower() in FULL_DTYPES for dtype in dtypes)
        exact = full and self.trainer_full_precision is True and not self.quantizations
        return exact or any(map(bool, self.engine("batch_invariant"))) or claim_of(self.trainer or {}) is not None

    @property
    def dropouts(self) -> Mapping[str, float]:
        """Trainer settings that drop parts of the model at random."""
        settings = (self.trainer or {}).items()
        return {n: float(v) for n, v in settings if "dropout" in n and isinstance(v, int | float) and v > 0}

    @property
    def quantizations(self) -> Mapping[str, str]:
        """Quantised parts of the engine: settings whose value is not the model's own dtype."""
        quantized = {"quantization": [str(v) for v in self.engine("quantization")]}
        quantized["kv_cache_dtype"] = [str(v) for v in self.engine("kv_cache_dtype") if _is_quantized(str(v))]
        return {name: values[0] for name, values in quantized.items() if values}

    @property
    def mixture_of_experts(self) -> bool:
        """True if the model routes tokens to experts, by its architecture's name."""
        names = [name for value in self.engine("architectures") for name in value]
        return any("moe" in str(name).lower() or "mixtral" in str(name).lower() for name in names)


def from_documents(rows: Iterable[Mapping[str, Any]]) -> Setup:
    """Build the setup from rows ``fingerprint, kind, document (JSON), sequences``.

    If any document of a kind is used by a rollout, unused ones are omitted, since an engine may have been restarted.
    """
    by_kind = {kind: {row["fingerprint"]: parsed(row["document"]) for row in some} for kind, some in used(rows).items()}
    trainers = list(by_kind["trainer_config"].values())
    return Setup(
        engines=tuple(document.get("summary", document) for document in by_kind["engine_config"].values()),
        samplings=by_kind["sampling_params"] or None,
        trainer=dict(flat(trainers[-1])) if trainers else None,
    )


def used(rows: Iterable[Mapping[str, Any]]) -> dict[str, list[Mapping[str, Any]]]:
    """Return the configuration records by kind, without unused ones if any of their kind is used."""
    of_kind: dict[str, list[Mapping[str, Any]]] = {kind: [] for kind in KINDS}
    for row in rows:
        of_kind.setdefault(row["kind"], []).append(row)
    return {kind: [row for row in some if row["sequences"]] or some for kind, some in of_kind.items()}


def claim_of(trainer: Mapping[str, Any]) -> str | None:
    """Return the setting of a trainer that claims equal bits at engine and trainer, or None.

    >>> claim_of({"policy": {"megatron_cfg": {"zero_train_gen_mismatch": True}}})
    'policy.megatron_cfg.zero_train_gen_mismatch'
    """
    return next((name for name, value in flat(trainer) if value is True and name.rpartition(".")[2] in _CLAIMS), None)


def parsed(text: str) -> Mapping[str, Any]:
    """Return a recorded configuration document, or an empty one for invalid text."""
    try:
        document = json.loads(text)
    except ValueError:
        return {}  # somebody else's text: no setting can be read from it
    return document if isinstance(document, dict) else {}


def flat(document: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Return all settings of a nested document by dotted name."""
    for key, value in document.items():
        if isinstance(value, Mapping):
            yield from flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _distinct(values: Iterable[Any]) -> tuple[Any, ...]:
    seen: list[Any] = []
    for value in values:
        if value is not None and value not in seen:
            seen.append(value)
    return tuple(seen)


def _is_quantized(dtype: str) -> bool:
    return dtype.lower().startswith(("fp8", "int8", "int4", "nvfp4", "turboquant"))
