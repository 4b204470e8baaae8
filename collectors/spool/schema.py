"""Wire contract: the records that a collector may write into the spool, as one Arrow schema per record kind.

A segment holds rows of one kind. Values shared by all rows of a segment (run, writer, schema version, …) are stored
once in the file's schema metadata, see `segment_metadata`. Token-level data is one row per sequence with list columns.

Readers accept any version up to `SCHEMA_VERSION`. A column added later is null for older files. A column is never
renamed or re-typed within a version.
"""

from __future__ import annotations

from typing import Final

import pyarrow as pa

from logprobe.collectors.kernel.pairs import RATIO_PAIRS
from logprobe.collectors.kernel.statistics import COLUMN_SPECS

SCHEMA_VERSION: Final = 1
# No whole number of a record is further from 0, in microseconds since 1970 the year 2255: what is computed from it
# neither overflows nor loses digits as a float. NaN turned into an integer is further off.
LARGEST: Final = 1 << 53

_TIME = pa.timestamp("us", tz="UTC")
_IDS = pa.list_(pa.int32())
_ROUTES = pa.list_(pa.uint16())  # [tokens × layers], token by token: see `routes.py`
_FLOATS = pa.list_(pa.float32())  # float32 end to end: bfloat16 log-probs would be larger errors than what is measured
# Tokens up to `end` have the version they have by what happened at `at`; `first` and `last` are their first and last
# step. Times as `step_times`.
DECISION: Final = pa.struct([("end", pa.int32()), *((name, pa.int64()) for name in ("at", "first", "last"))])
SPAN: Final = pa.struct([("start", pa.int32()), ("end", pa.int32()), ("version", pa.string())])
# Tokens [start, end) of a training record that one weight version sampled; `sampled_*`: the same among its tokens under
# the mask.
STATED_SPAN: Final = pa.struct(
    [*((name, pa.int32()) for name in ("start", "end", "sampled_start", "sampled_end")), ("version", pa.string())]
)

# When an engine saw its weights, from `began` to `ended`, and when it last heard itself what they are (`decided`; null:
# never). The rest as in ROLLOUT.
SEEN: Final = pa.struct(
    [
        *((name, pa.int64()) for name in ("began", "ended", "decided", "clock_offset", "clock_set", "engine_started")),
    ]
)
UNLESS: Final = pa.struct([("since", pa.int64()), ("until", pa.int64())])

# What the trainer knows of one sequence. All list columns of a row have the length of `token_ids`, `routes` a multiple
# of it, or are null.
TRAINING: Final = pa.schema(
    [
        ("time", _TIME),
        ("step", pa.int64()),
        ("rank", pa.int32()),
        ("sample_id", pa.string()),
        ("group_id", pa.string()),  # `prompt_ids`: samples of one prompt share it
        ("token_ids", _IDS),
        ("mask", pa.list_(pa.bool_())),  # True: sampled by the policy and trained on
        ("rollout_logprobs", _FLOATS),  # r as the trainer received it; null: to be joined with the rollout record
        ("trainer_logprobs", _FLOATS),  # t
        ("current_logprobs", _FLOATS),  # c
        ("entropy", _FLOATS),
        ("advantages", _FLOATS),
        ("reward", pa.float64()),
        ("weight_version", pa.string()),  # the trainer's version that computed t
        ("tags", pa.map_(pa.string(), pa.string())),
        ("routes", _ROUTES),  # fingerprints of sets of experts; 0: none
        (
            "part_ids",
            pa.list_(pa.string()),
        ),  # engine requests that this sequence was sampled in, in order; null: one, `sample_id`
        ("reference_logprobs", _FLOATS),  # of the reference policy
        (
            "rollout_versions",
            pa.list_(STATED_SPAN),
        ),  # what the trainer knows of the weights that sampled; null: nothing
        ("teacher_logprobs", _FLOATS),  # of the teacher of an on-policy distillation
    ]
)

# Columns of TRAINING with a number per token.
TRAINING_FLOATS: Final[tuple[str, ...]] = tuple(field.name for field in TRAINING if field.type == _FLOATS)

# What the engine knows of one sequence.
ROLLOUT: Final = pa.schema(
    [
        ("time", _TIME),
        ("sample_id", pa.string()),
        ("request_id", pa.string()),  # as the engine names it, where it differs
        ("group_id", pa.string()),
        ("replica", pa.string()),
        ("token_ids", _IDS),  # sampled tokens only, without the prompt
        ("logprobs", _FLOATS),  # r at the source; a missing value is null, never 0
        ("spans", pa.list_(SPAN)),  # weight versions, [start, end) in sampled tokens; version null: unknown
        ("prompt_length", pa.int32()),
        ("prompt_hash", pa.string()),
        ("cached_prefix_tokens", pa.int32()),
        ("finish_reason", pa.string()),
        ("sampling_id", pa.string()),  # fingerprint of a `config` record
        ("engine_config_id", pa.string()),
        ("routes", _ROUTES),
        ("adapter", pa.string()),  # LoRA: its name and number; null: the weights alone
        ("adapter_id", pa.int64()),
        (
            "step_times",
            pa.list_(pa.int64()),
        ),  # when the step of each token began: microseconds of the monotonic clock of `machine`
        ("decisions", pa.list_(DECISION)),  # how `spans` came about: marks that came later than `at` decide instead
        ("machine", pa.string()),
        ("clock_offset", pa.int64()),  # microseconds that the wall clock was ahead of the monotonic one
        ("clock_set", pa.int64()),  # when the wall clock was set last; null: it was not
        ("engine_started", pa.int64()),  # marks made before belong to an earlier engine
        ("trajectory", pa.string()),  # name of the sequence that this request is a part of, as the caller gave it
        ("prompt_token_ids", _IDS),  # of a chosen share of prompts, once per `prompt_hash`; null: not recorded
    ]
)

# Scalars of one optimizer step.
STEP: Final = pa.schema(
    [
        ("time", _TIME),
        ("step", pa.int64()),
        ("rank", pa.int32()),
        ("scalars", pa.map_(pa.string(), pa.float64())),
        ("correction", pa.string()),  # JSON of the correction applied in this step; null: none stated
    ]
)

# One observation of a weight update, on the trainer's side or on an engine's.
WEIGHTS: Final = pa.schema(
    [
        ("time", _TIME),
        ("version", pa.string()),
        ("step", pa.int64()),  # optimizer step whose result this version is
        ("source", pa.string()),  # "trainer" | "engine"
        ("replica", pa.string()),
        ("requested_at", _TIME),
        ("started_at", _TIME),
        ("applied_at", _TIME),
        ("resumed_at", _TIME),
        ("pause_mode", pa.string()),
        ("cache_cleared", pa.bool_()),  # null: unknown
        ("tensors", pa.int64()),
        ("checksum", pa.string()),
        ("adapter", pa.string()),
        (
            "moment",
            pa.int64(),
        ),  # of a mark: `applied_at` as microseconds of the monotonic clock of `machine`; null: this is no mark
        ("machine", pa.string()),
        # Of an engine ("engine", or "worker" for what one of its processes read): when that was, on `machine`. Its
        # `version` is what the engine was told itself; the monitor adds what was marked.
        ("seen", SEEN),
        ("unless", UNLESS),  # of a worker: since `moment` nobody knows the weights, unless one was marked in between
        # A fingerprint of the weights, see `fingerprint.py`. Of an engine ("worker" as the source) each is a row of its
        # own, read at `applied_at`.
        ("fingerprint", pa.string()),  # 16 hex digits over all hashes
        ("layout", pa.string()),  # fingerprint of the `config` record that lists the tensors
        ("tensor_hashes", pa.list_(pa.uint32())),  # in the order of the layout
        ("worker", pa.string()),  # of an engine of several processes: which; null: its only one
        # Of a reading: "load" | "label" | "resume" | "check" | "use" | "checksum"; of an engine's update: what loaded.
        ("reason", pa.string()),
        # Of a trainer's fingerprint: sampled elements by what rounding does to them, see `fingerprint.rounding`.
        ("elements", pa.map_(pa.string(), pa.int64())),
    ]
)

# A configuration document, written once per fingerprint and writer.
CONFIG: Final = pa.schema(
    [
        ("time", _TIME),
        ("fingerprint", pa.string()),
        ("kind", pa.string()),  # "engine_config" | "sampling_params" | "trainer_config" | "weight_layout" | "run"
        ("replica", pa.string()),
        ("document", pa.string()),  # JSON
    ]
)

# What a collector dropped and why, what it found out about its host, and what it cost.
HEALTH: Final = pa.schema(
    [
        ("time", _TIME),
        ("component", pa.string()),  # "recorder" | "vllm_plugin" | "service" | …
        ("event", pa.string()),  # "started" | "heartbeat" | "closed" | "self_test" | a problem's identifier
        ("severity", pa.string()),  # "info" | "warning" | "error"
        ("message", pa.string()),
        ("count", pa.int64()),  # occurrences since the last record of this event
        ("sequences", pa.int64()),  # lost by it
        ("tokens", pa.int64()),
        ("step", pa.int64()),  # the first step concerned, where one is known
        ("details", pa.string()),  # JSON
    ]
)

# Sufficient statistics of one sequence, reduced next to the collector: written instead of raw tokens when the disk or
# the queue cannot take those. A pair is null when the call did not carry both its log-probs; its fields are those of
# `statistics.py`, in their order.
_PAIR: Final = pa.struct([(c.name, pa.int64() if c.count else pa.float64()) for c in COLUMN_SPECS])
STATISTICS: Final = pa.schema(
    [
        ("time", _TIME),
        ("step", pa.int64()),
        ("rank", pa.int32()),
        ("sample_id", pa.string()),
        ("group_id", pa.string()),
        ("n_total", pa.int32()),  # tokens, masked ones included
        ("n_expected", pa.int32()),  # tokens under the mask
        ("reward", pa.float64()),
        ("advantage_abs_sum", pa.float64()),  # over finite ones under the mask; null: not reported
        ("entropy_sum", pa.float64()),
        ("entropy_n", pa.int32()),
        ("weight_version", pa.string()),
        ("token_hash", pa.uint64()),  # of the token ids under the mask, see `token_hash.py`
        ("tags", pa.map_(pa.string(), pa.string())),
        *((pair, _PAIR) for pair in RATIO_PAIRS),
        ("part_ids", pa.list_(pa.string())),
        ("reference", _PAIR),
        ("rollout_versions", pa.list_(STATED_SPAN)),
        ("teacher", _PAIR),
    ]
)

SCHEMAS: Final[dict[str, pa.Schema]] = {
    "training": TRAINING,
    "rollout": ROLLOUT,
    "step": STEP,
    "weights": WEIGHTS,
    "config": CONFIG,
    "health": HEALTH,
    "statistics": STATISTICS,
}


def segment_metadata(*, kind: str, run: str, writer: str, number: int) -> dict[bytes, bytes]:
    """Return the schema metadata that all rows of a segment share.

    Together with the checksum of the bytes, they identify the segment.
    """
    return {
        b"logprobe.schema": str(SCHEMA_VERSION).encode(),
        b"logprobe.kind": kind.encode(),
        b"logprobe.run": run.encode(),
        b"logprobe.writer": writer.encode(),
        b"logprobe.number": str(number).encode(),
    }
