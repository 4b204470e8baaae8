"""Records → what they are found to be, and metrics: tables, with no home and no store.

Each case is brought three times: its records all at once, one at a time, and one at a time from the last; and says the same in every bit.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pytest
from live_records import live_sequences
from segments import RUN, at, records, sampled, trained

from logprobe.monitor.live.memory import Run
from logprobe.monitor.live.records import Arrived
from logprobe.monitor.live.tick import Live
from logprobe.monitor.live.versions import Decided, Decision, resolved

Row = dict[str, Any]
Piece = tuple[str, Row, str]  # record kind, record, writer
SECOND = 1_000_000
NAN = float("nan")


def training(name: str, step: int = 3, writer: str = "t", **fields: Any) -> Piece:
    return "training", trained(name, step, **{"received": False} | fields), writer


def rollout(name: str, n: int = 4, writer: str = "e", **fields: Any) -> Piece:
    return "rollout", sampled(name, n, **fields), writer


def mark(version: str | None, second: float, **fields: Any) -> Piece:
    row = {"version": version, "source": "trainer", "applied_at": at(second), "time": at(second), "machine": "here"}
    return "weights", row | {"moment": round(second * SECOND)} | fields, "w"


def weights(
    version: str | None, second: float, step: int | None = None, source: str = "trainer", **fields: Any
) -> Piece:
    return "weights", {"version": version, "time": at(second), "step": step, "source": source} | fields, "w"


def told(step: int, second: float, rank: int = 0, **scalars: float) -> Piece:
    row = {"time": at(second), "step": step, "rank": rank, "scalars": list(scalars.items())}
    return "step", row, f"t{rank}"


def says(writer: str, event: str, second: float, step: int | None = None, rank: int = 0, **more: Any) -> Piece:
    row = {"time": at(second), "event": event, "component": "recorder", "severity": "info", "step": step}
    return "health", row | {"details": json.dumps({"rank": rank, **more})}, writer


def begins(writer: str, second: float, step: int) -> list[Piece]:
    return [says(writer, "started", second - 0.5), says(writer, "training_begins", second, step)]


def changed(since: float, until: float, **fields: Any) -> Piece:
    """A worker's weights became others between two readings that began then."""
    began, ended = round(since * SECOND), round(until * SECOND)
    row = {"time": at(until), "source": "worker", "machine": "here", "moment": began + 1, "reason": "check"}
    seen = {"began": ended, "ended": ended, "decided": None, "clock_offset": 0, "clock_set": None, "engine_started": 0}
    return "weights", row | {"seen": seen, "unless": {"since": began, "until": ended}} | fields, "e"


def loaded(began: float, ended: float, **fields: Any) -> Piece:
    """An engine's update, from its last step before it to the first after it."""
    seen = {"began": round(began * SECOND), "ended": round(ended * SECOND), "engine_started": 0}
    seen |= {"decided": None, "clock_offset": round(at(0).timestamp()) * SECOND, "clock_set": None}
    row = {"time": at(ended), "source": "engine", "machine": "here", "replica": "e", "seen": seen}
    return "weights", row | fields, "e"


def spans(*some: tuple[int, int, str | None]) -> list[Row]:
    return [{"start": start, "end": end, "version": version} for start, end, version in some]


def decisions(*ends: int) -> list[Row]:
    return [{"end": end, "at": 100 * SECOND, "first": 101 * SECOND, "last": 104 * SECOND} for end in ends]


def steps_at(*seconds: float, decided: float | None = None) -> Row:
    times = [round(second * SECOND) for second in seconds]
    known = None if decided is None else round(decided * SECOND)
    decisions = [{"end": len(times), "at": known, "first": times[0], "last": times[-1]}]
    return {"step_times": times, "decisions": decisions, "machine": "here", "clock_offset": 0, "engine_started": 0}


@dataclass(frozen=True)
class Case:
    """Records; of each sequence (name, or name@step where it comes in several) what is expected; metrics of steps."""

    words: str
    pieces: list[Piece]
    sequences: dict[str, Row] = field(default_factory=dict)
    metrics: dict[tuple[int, str], float | None] = field(default_factory=dict)


OURS = training("a")
JOINED = {"rollout_source": "joined", "token_match": True}
EXACT = JOINED | {"length_match": True, "joined_by": "id"}
APART = {"rollout_source": "missing", "joined_by": "ambiguous", "token_match": None, "alignment": None}
UNLINKED = {"rollout_source": "missing", "joined_by": None, "rollout_segment": None}
UNALIGNED = {"rollout_source": "unaligned", "alignment": None, "token_match": False}
D = 0.5
K3 = math.exp(D) - 1 - D
MISSING: dict[tuple[int, str], float | None] = {(3, "backend.k3_kl"): None, (3, "backend.coverage"): 0.0}
ALIKE = [rollout("a", version=f"v{i}", logprobs=[-1.0 - i, -2.0, -3.0, -4.0], time=at(i)) for i in (1, 2)]
FAST = [rollout("a", version=f"v{i}", logprobs=[-1.0 - i, -2.0, -3.0, -4.0], time=at(3600 + i)) for i in (1, 2)]
LONG = list(range(100, 112))
PARTS = [
    rollout("a/0", 2, prompt_length=5, token_ids=[0, 1], version="1"),
    rollout("b/0", 2, prompt_length=7, token_ids=[2, 3], version="2"),
]
BY_TRAINER = training("a/0…b/0", part_ids=["a/0", "b/0"], weight_version="2")


def long_ones(name: str, **fields: Any) -> Piece:
    r = [-0.75] * len(LONG)
    return "rollout", sampled(name, len(LONG), token_ids=LONG, logprobs=r) | {"time": at(2)} | fields, "e"


def trained_long(name: str, **fields: Any) -> Piece:
    t = [-0.5] * len(LONG)
    return training(name, **{"n": len(LONG), "token_ids": LONG, "trainer_logprobs": t} | fields)


NAMES = [
    Case("a record of the engine fills in r", [OURS, rollout("a")], {"a": EXACT | {"alignment": "all"}},
         {(3, "backend.k3_kl"): K3, (3, "backend.coverage"): 1.0, (3, "token_mismatch_frac"): 0.0}),
    Case("nothing of the engine", [OURS, rollout("b")], {"a": UNLINKED}, MISSING),
    Case("r as the trainer received it stays", [training("a", received=True), rollout("a", logprobs=[-1.0, -2.25, -3.0, None])],
         {"a": {"rollout_source": "received", "difference": 0.25, "token_match": True}}, {(3, "backend.k3_kl"): K3}),
    Case("received, and other tokens", [training("a", received=True), rollout("a", token_ids=[9] * 4)],
         {"a": {"rollout_source": "received", "token_match": False, "difference": None, "alignment": None}},
         {(3, "backend.k3_kl"): K3, (3, "token_mismatch_frac"): 1.0}),
    Case("other tokens are not measured", [OURS, rollout("a", token_ids=[0, 1, 7, 3])], {"a": UNALIGNED | {"length_match": True}},
         MISSING | {(3, "token_mismatch_frac"): 1.0}),
    Case("no tokens", [OURS, rollout("a", 0)], {"a": UNALIGNED | {"length_match": False}}, {(3, "length_mismatch_frac"): 1.0}),
    Case("under the mask", [training("a", n=5, token_ids=[90, 0, 91, 1, 2], mask=[False, True, False, True, True]), rollout("a", 3)],
         {"a": EXACT | {"alignment": "masked"}}, {(3, "response_length"): 3.0, (3, "backend.coverage"): 1.0}),
    Case("all tokens, masked ones too", [training("a", mask=[True, False, True, False]), rollout("a")],
         {"a": EXACT | {"alignment": "all"}}, {(3, "response_length"): 2.0}),
    Case("the engine went on", [OURS, rollout("a", 7)], {"a": JOINED | {"alignment": "prefix", "length_match": False}},
         {(3, "backend.coverage"): 1.0}),
    Case("the trainer went on", [OURS, rollout("a", 3)], {"a": JOINED | {"alignment": "prefix", "length_match": False}},
         {(3, "backend.coverage"): 0.75}),
    Case("no log-probs of the engine", [OURS, rollout("a", logprobs=None)], {"a": {"rollout_source": "missing", "token_match": True}}, MISSING),
    Case("broken log-probs of the engine", [OURS, rollout("a", logprobs=[-1.0, None, -math.inf, -4.0])], {"a": EXACT},
         {(3, "backend.coverage"): 0.5, (3, "backend.nonfinite_tokens"): 2.0, (3, "backend.k3_kl"): K3}),
    Case("a better record", [OURS, rollout("a", token_ids=[7] * 4), rollout("a")], {"a": EXACT}, {(3, "backend.k3_kl"): K3}),
    Case("the same length is better than a prefix", [OURS, rollout("a", 3), rollout("a")], {"a": EXACT | {"alignment": "all"}}),
    Case("all tokens behind a mask are the same tokens",
         [training("a", mask=[True, False, True, True]), rollout("a", token_ids=[0, 9, 2, 3], time=at(2.9)), rollout("a", time=at(1))],
         {"a": EXACT | {"alignment": "all"}}),
    Case("other tokens take nothing over from a prefix",
         [OURS, rollout("a", 3, time=at(1)), rollout("a", token_ids=[7] * 4, time=at(2))], {"a": UNALIGNED}, MISSING),
    Case("names that come again at every step",
         [piece for s in range(3) for piece in (training("a", s, token_ids=[s] * 4), rollout("a", token_ids=[s] * 4, time=at(s)))],
         {f"a@{s}": EXACT for s in range(3)}, {(s, "backend.coverage"): 1.0 for s in range(3)}),
    Case("of several with other tokens the newest before the training is compared",
         [OURS, *(rollout("a", token_ids=[i] * 4, time=at(i)) for i in (1, 2, 3, 4, 5))], {"a": UNALIGNED | {"rollout_segment": "003"}}),
    Case("one of as many tokens is compared before a nearer one",
         [OURS, *(rollout("a", n, token_ids=[9] * n, time=at(i)) for i, n in ((1, 4), (2, 3), (3, 5)))],
         {"a": UNALIGNED | {"length_match": True, "rollout_segment": "001"}}),
    Case("several that say different things", [OURS, *ALIKE], {"a": APART}, MISSING),
    Case("several of an engine whose clock is an hour fast", [OURS, *FAST], {"a": APART}, MISSING),
    Case("a record of an engine whose clock is an hour fast", [OURS, FAST[0]], {"a": EXACT}),
    Case("several, of which one was received", [training("a", rollout_logprobs=[-2.0, -2.0, -3.0, -4.0]), *ALIKE],
         {"a": {"rollout_source": "received", "joined_by": "id", "difference": 0.0}}),
    Case("several, of which none was received", [training("a", rollout_logprobs=[-7.0, -2.0, -3.0, -4.0]), *ALIKE],
         {"a": APART | {"rollout_source": "received"}}),
    Case("several, and a third that was received", [training("a", rollout_logprobs=[-7.0, -2.0, -3.0, -4.0]), *ALIKE,
         rollout("a", logprobs=[-7.0, -2.0, -3.0, -4.0], time=at(2.5))], {"a": {"joined_by": "id", "difference": 0.0}}),
    Case("several that say the same", [OURS, rollout("a", time=at(1)), rollout("a", time=at(2))], {"a": EXACT}),
    Case("what was sampled after the training and came first", [OURS, rollout("a", logprobs=[-9.0] * 4, time=at(60)), rollout("a", time=at(1))],
         {"a": EXACT}, {(3, "backend.k3_kl"): K3}),
    Case("a second record where the trainer has c alone",
         [training("a", trainer_logprobs=None, current_logprobs=[-0.5, -1.5, -2.5, -3.5]), rollout("a", 3, time=at(1)), rollout("a", time=at(2))],
         {"a": EXACT}, {(3, "total.coverage"): 1.0, (3, "total.k3_kl"): K3}),
    Case("what was sampled after the training", [OURS, ALIKE[0], ("rollout", ALIKE[1][1] | {"time": at(60)}, "e")], {"a": EXACT}),
]  # fmt: skip
TOKENS = [
    Case("names that never meet", [trained_long("t"), long_ones("r")], {"t": JOINED | {"joined_by": "tokens"}}, {(3, "backend.coverage"): 1.0}),
    Case("two records with these tokens", [trained_long("t"), long_ones("r"), long_ones("s")], {"t": APART}, MISSING),
    Case("two samples with these tokens", [trained_long("t"), trained_long("u"), long_ones("r")], {"t": APART, "u": APART}, MISSING),
    Case("one sample, trained on twice", [trained_long("t"), trained_long("t", step=4), long_ones("r")],
         {"t@3": {"joined_by": "tokens"}, "t@4": {"joined_by": "tokens"}}),
    Case("names meet", [trained_long("t"), OURS, rollout("a"), long_ones("r")], {"t": UNLINKED, "a": EXACT}),
    Case("names meet later", [trained_long("t"), training("a", 4), rollout("a"), long_ones("r")],
         {"t": JOINED | {"joined_by": "tokens"}, "a": EXACT}),
    Case("short answers", [OURS, rollout("r")], {"a": UNLINKED}),
    Case("sampled later", [trained_long("t"), long_ones("r", time=at(14))], {"t": UNLINKED}),
    Case("sampled long before", [trained_long("t", step=30), long_ones("r"), training("o", 13)], {"t": UNLINKED}),
]  # fmt: skip
REQUESTS = [
    Case("named by the trainer", [BY_TRAINER, *PARTS], {"a/0…b/0": JOINED | {"joined_by": "parts", "length_match": True}},
         {(3, "weight_lag_mean"): 0.5, (3, "mixed_version_frac"): 1.0, (3, "backend.coverage"): 1.0}),
    Case("one is not there yet", [BY_TRAINER, PARTS[0]], {"a/0…b/0": UNLINKED}, MISSING),
    Case("other tokens", [BY_TRAINER, PARTS[0], rollout("b/0", 2, prompt_length=7, token_ids=[2, 9])], {"a/0…b/0": UNALIGNED | {"joined_by": "parts"}}),
    Case("named at the engine", [OURS, *(("rollout", row | {"trajectory": "a"}, w) for _, row, w in PARTS)],
         {"a": JOINED | {"joined_by": "parts", "length_match": True}}),
    Case("named at the engine, and one is missing", [OURS, ("rollout", PARTS[0][1] | {"trajectory": "a"}, "e")],
         {"a": JOINED | {"joined_by": "parts", "length_match": False}}, {(3, "backend.coverage"): 0.5}),
    Case("a part that says two things", [BY_TRAINER, *PARTS, ("rollout", PARTS[1][1] | {"logprobs": [-1.0, -9.0]}, "e")], {"a/0…b/0": APART}),
    Case("a part that says two things, by a clock that is an hour fast",
         [BY_TRAINER, PARTS[0], *(("rollout", PARTS[1][1] | {"logprobs": [-1.0, r], "time": at(3600)}, "e") for r in (-2.0, -9.0))],
         {"a/0…b/0": APART}),
    Case("what the trainer received stays its r",
         [training("a/0…b/0", part_ids=["a/0", "b/0"], rollout_logprobs=[-1.0, -2.0, -1.0, -2.5]), *PARTS],
         {"a/0…b/0": {"rollout_source": "received", "difference": 0.5, "joined_by": "parts"}}),
    Case("a part named at the engine that says two things",
         [OURS, *(("rollout", row | {"trajectory": "a"}, w) for _, row, w in PARTS),
          ("rollout", PARTS[1][1] | {"trajectory": "a", "logprobs": [-1.0, -9.0]}, "e")], {"a": APART}),
    Case("a part whose name came again after the training",
         [BY_TRAINER, PARTS[0], rollout("b/0", 2, prompt_length=7, token_ids=[8, 9], time=at(60)), PARTS[1]],
         {"a/0…b/0": JOINED | {"joined_by": "parts", "length_match": True}}),
    Case("a part that says it twice", [BY_TRAINER, *PARTS, PARTS[1]], {"a/0…b/0": JOINED | {"joined_by": "parts"}}),
]  # fmt: skip
KNOWN = training("a", weight_version="3")
KNOWN_LATER = training("a", weight_version="3", time=at(105))
DECIDED = steps_at(101, 102, 103, 104, decided=100)
UNDECIDED = steps_at(101, 102, 103, 104)
TWO_LOADS = {
    "decisions": [
        {"end": 2, "at": None, "first": 101 * SECOND, "last": 102 * SECOND},
        {"end": 4, "at": 103 * SECOND, "first": 103 * SECOND, "last": 104 * SECOND},
    ]
}
WALL = {"clock_offset": round(at(0).timestamp()) * SECOND}
LORA = {"adapter": "style", "adapter_id": 7}
VERSIONS = [
    Case("one version", [KNOWN, rollout("a", version="1")], {},
         {(3, "weight_lag_mean"): 2.0, (3, "unknown_version_frac"): 0.0, (3, "mixed_version_frac"): 0.0}),
    Case("the newest weights of a sequence may have sampled one token of it",
         [training("a", weight_version="10"), rollout("a", spans=spans((0, 3, "7"), (3, 4, "9")))],
         {}, {(3, "weight_lag_newest"): 1.0, (3, "weight_lag_mean"): 2.5, (3, "mixed_version_frac"): 1.0}),
    Case("a late mark", [KNOWN, rollout("a", version="1", **steps_at(101, 102, 103, 104, decided=100)), mark("3", 103)],
         {}, {(3, "weight_lag_mean"): 1.0, (3, "mixed_version_frac"): 1.0}),
    Case("two late marks", [KNOWN, rollout("a", version="0", **steps_at(101, 102, 103, 104, decided=100)), mark("2", 102), mark("3", 104)],
         {}, {(3, "weight_lag_mean"): 1.25}),
    Case("a mark before what decided", [KNOWN, rollout("a", version="1", **steps_at(101, 102, 103, 104, decided=100)), mark("3", 99)],
         {}, {(3, "weight_lag_mean"): 2.0}),
    Case("a mark after the last step", [KNOWN, rollout("a", version="1", **DECIDED), mark("3", 105)], {}, {(3, "weight_lag_mean"): 2.0}),
    Case("a mark of an adapter", [KNOWN, rollout("a", version="1", **DECIDED), mark("3", 103, adapter="style")], {}, {(3, "weight_lag_mean"): 2.0}),
    Case("the trainer speaks of its weights, which is no mark",
         [KNOWN, rollout("a", version="1", **DECIDED), mark("3", 103, moment=None)], {}, {(3, "weight_lag_mean"): 2.0}),
    Case("a load after the mark leaves its tokens unknown",
         [KNOWN, rollout("a", version=None, **UNDECIDED | TWO_LOADS), mark("3", 100.5), mark("2", 60)],
         {}, {(3, "weight_lag_mean"): 0.0, (3, "unknown_version_frac"): 0.5}),
    Case("a mark of another machine is placed by the wall clocks",
         [training("a", weight_version="3", time=at(94)),  # 10 s before the last step: so much may clocks differ
          rollout("a", version="1", **DECIDED | WALL), mark("3", 102, machine="there", moment=5)],
         {}, {(3, "weight_lag_mean"): 0.5}),
    Case("a step after it was trained on: a clock is ahead, and no mark can be placed",
         [training("a", weight_version="3", time=at(93.9)),
          rollout("a", version="1", **DECIDED | WALL), mark("3", 102, machine="there", moment=5)],
         {}, {(3, "weight_lag_mean"): None, (3, "unknown_version_frac"): 1.0}),
    Case("the clock of one part's engine is ahead",
         [training("a/0…b/0", part_ids=["a/0", "b/0"], weight_version="3", time=at(93.9)),
          rollout("a/0", 2, version="1", prompt_length=5, **steps_at(1, 2, decided=0) | WALL),
          rollout("b/0", 2, version="1", prompt_length=7, token_ids=[2, 3], **steps_at(103, 104, decided=100) | WALL)],
         {}, {(3, "weight_lag_mean"): None, (3, "unknown_version_frac"): 1.0}),
    Case("clocks out of all bounds",
         [KNOWN, rollout("a", version="1", **DECIDED | {"clock_offset": -(1 << 53)}), mark("3", 102, machine="there")],
         {}, {(3, "weight_lag_mean"): 2.0}),
    Case("of an adapter only its own marks count",
         [KNOWN, rollout("a", version=None, **LORA, **UNDECIDED), mark("9", 101), mark("3", 102, adapter="style")],
         {}, {(3, "weight_lag_mean"): 0.0, (3, "unknown_version_frac"): 0.25}),
    Case("an adapter is unknown with the weights below it",
         [KNOWN, rollout("a", version="1", **LORA, **DECIDED), mark(None, 103, source="engine")], {}, {(3, "unknown_version_frac"): 0.5}),
    Case("an adapter is not unknown with another",
         [KNOWN, rollout("a", version="1", **LORA, **DECIDED), mark(None, 103, source="engine", adapter="other")], {}, {(3, "unknown_version_frac"): 0.0}),
    Case("a late mark of parts",
         [training("a/0…b/0", part_ids=["a/0", "b/0"], weight_version="3"),
          rollout("a/0", 2, version="1", prompt_length=5, **steps_at(101, 102, decided=100)),
          rollout("b/0", 2, version="1", prompt_length=7, token_ids=[2, 3], **steps_at(103, 104, decided=100)), mark("3", 102.5)],
         {}, {(3, "weight_lag_mean"): 1.0}),
    Case("a mark of another replica", [KNOWN, rollout("a", version="1", replica="e", **steps_at(1, 2, 3, 4, decided=0)), mark("3", 2, replica="w")],
         {}, {(3, "weight_lag_mean"): 2.0}),
    Case("a mark of the engine of a replica",
         [KNOWN, rollout("a", version="1", replica="e-dp3", **steps_at(1, 2, 3, 4, decided=0)), mark("3", 1, replica="e")],
         {}, {(3, "weight_lag_mean"): 0.0}),
    Case("since a mark of no version nothing is known",
         [KNOWN, rollout("a", version="1", **steps_at(1, 2, 3, 4, decided=0)), mark(None, 3, source="engine")],
         {}, {(3, "unknown_version_frac"): 0.5}),
    Case("a mark after one of no version",
         [KNOWN, rollout("a", version="1", **DECIDED), mark(None, 102.5, source="engine"), mark("3", 104)],
         {}, {(3, "unknown_version_frac"): 0.25, (3, "weight_lag_mean"): 4 / 3}),
    Case("weights that changed without a word are unknown since they were last seen",
         [KNOWN, rollout("a", version="1", **DECIDED), changed(102, 104)], {}, {(3, "unknown_version_frac"): 0.5}),
    Case("a mark of that time names them", [KNOWN, rollout("a", version="1", **DECIDED), changed(102, 104), mark("3", 103.5)],
         {}, {(3, "unknown_version_frac"): 0.0, (3, "weight_lag_mean"): 1.5}),
    Case("a mark of an earlier time does not", [KNOWN, rollout("a", version="1", **DECIDED), changed(102, 104), mark("2", 100.5)],
         {}, {(3, "unknown_version_frac"): 0.5, (3, "weight_lag_mean"): 1.0}),
    Case("with them an adapter is unknown", [KNOWN, rollout("a", version="1", **LORA, **DECIDED), changed(102, 104)],
         {}, {(3, "unknown_version_frac"): 0.5}),
    Case("an adapter that is read again, marked when its files were there",
         [KNOWN, rollout("a", version=None, **LORA, **UNDECIDED), mark("1", 100, adapter="style"), mark("3", 101.5, adapter="style"),
          changed(101.2, 103, adapter="style", moment=103 * SECOND)],
         {}, {(3, "unknown_version_frac"): 0.25, (3, "weight_lag_mean"): 2 / 3}),
    Case("an adapter that is read again after the weights below it became others",
         [KNOWN, rollout("a", version=None, **LORA, **UNDECIDED), mark("1", 100, adapter="style"), mark("3", 101.5, adapter="style"),
          changed(101.6, 102.8), changed(101.2, 103, adapter="style", moment=103 * SECOND)],
         {}, {(3, "unknown_version_frac"): 0.75}),
    Case("an adapter that is read again, and nobody marked it",
         [KNOWN, rollout("a", version=None, **LORA, **UNDECIDED), mark("1", 100, adapter="style"),
          changed(101.2, 103, adapter="style", moment=103 * SECOND)], {}, {(3, "unknown_version_frac"): 0.5}),
    Case("across a setting of the clock marks of other machines are not placed",
         [KNOWN_LATER, rollout("a", version=None, clock_set=102 * SECOND, **UNDECIDED | WALL), mark("1", 100, machine="there"), mark("3", 103, machine="there")],
         {}, {(3, "unknown_version_frac"): 0.5, (3, "weight_lag_mean"): 0.0}),
    Case("nor does what the engine was told before count",
         [KNOWN_LATER, rollout("a", version="1", clock_set=102 * SECOND, **DECIDED | WALL), mark("3", 103, machine="there")],
         {}, {(3, "unknown_version_frac"): 0.5, (3, "weight_lag_mean"): 0.0}),
    Case("marks of its own machine do", [KNOWN_LATER, rollout("a", version="1", clock_set=102 * SECOND, **DECIDED | WALL), mark("3", 103)],
         {}, {(3, "unknown_version_frac"): 0.0, (3, "weight_lag_mean"): 1.0}),
    Case("an engine's load is of the version that was marked before it went on",
         [OURS, rollout("a"), mark("v4", 12.2, step=3), loaded(10, 13, started_at=at(10), applied_at=at(12))],
         {}, {(3, "publish_delay_seconds_mean"): 2.0, (3, "publish_replicas"): 1.0}),
    Case("and of none if it went on before", [OURS, rollout("a"), mark("v4", 13.2, step=3), loaded(10, 13, started_at=at(10), applied_at=at(12))],
         {}, {(3, "publish_delay_seconds_mean"): None, (3, "publish_replicas"): 0.0}),
    Case("labels count by their order",
         [training("a", weight_version="late"), rollout("a", version="early"), weights("early", 0), weights("mid", 1), weights("late", 2)],
         {}, {(3, "weight_lag_mean"): 2.0, (3, "weight_lag_seconds_mean"): 2.0}),
    Case("a label that becomes known late, between two others",
         [training("a", weight_version="late"), rollout("a", version="early"), weights("early", 0), weights("late", 2), weights("mid", 1)],
         {}, {(3, "weight_lag_mean"): 2.0}),
    Case("two records that a mark makes alike",
         [KNOWN, rollout("a", version="1", time=at(1), **steps_at(101, 102, 103, 104, decided=100)), rollout("a", version="2", time=at(2)), mark("2", 100.5)],
         {"a": EXACT}, {(3, "weight_lag_mean"): 1.0}),
    Case("steps and seconds between versions", [KNOWN, rollout("a", version="1"), weights("1", 10, step=100), weights("3", 40, step=300)],
         {}, {(3, "weight_lag_steps_mean"): 200.0, (3, "weight_lag_seconds_mean"): 30.0}),
    Case("versions count by tokens, and an unknown one has none",
         [training("a", weight_version="10"), rollout("a", spans=spans((0, 1, "7"), (1, 3, "9"), (3, 4, None)))],
         {}, {(3, "weight_lag_mean"): 5 / 3, (3, "weight_lag_max"): 3.0, (3, "weight_lag_min"): 1.0, (3, "unknown_version_frac"): 0.25}),
    Case("spans beyond the tokens, and a gap", [KNOWN, rollout("a", spans=spans((-2, 1, "1"), (3, 99, "2")))],
         {}, {(3, "weight_lag_mean"): 1.5, (3, "unknown_version_frac"): 0.5}),
    Case("a label of unknown age has no lag", [training("a", weight_version="b"), rollout("a", version="who?"), weights("b", 0)],
         {}, {(3, "weight_lag_mean"): None, (3, "unknown_version_frac"): 0.0}),
    Case("a version without a step is not left out of the lag in steps",
         [training("a", weight_version="1"), rollout("a", spans=spans((0, 2, "0"), (2, 4, "1"))), weights("0", 0), weights("1", 1, step=0)],
         {}, {(3, "weight_lag_mean"): 0.5, (3, "weight_lag_seconds_mean"): 0.5, (3, "weight_lag_steps_mean"): None}),
    Case("what the trainer states", [training("a", weight_version="3", rollout_versions=[
            {"start": 0, "end": 4, "sampled_start": 0, "sampled_end": 4, "version": "2"}])], {}, {(3, "weight_lag_mean"): 1.0}),
    Case("the two disagree", [training("a", weight_version="3", rollout_versions=[
            {"start": 0, "end": 4, "sampled_start": 0, "sampled_end": 4, "version": "2"}]), rollout("a", version="1")],
         {}, {(3, "version_conflict_frac"): 1.0, (3, "unknown_version_frac"): 1.0}),
    *(Case(f"decisions that end at {ends} of four tokens", [KNOWN, rollout("a", version="1", **DECIDED | {"decisions": decisions(*ends)}), mark("3", 103)],
           {}, {(3, "unknown_version_frac"): 1.0}) for ends in ((4, 2), (2, 2, 4), (3,), (2, 9), (0, 4))),
]  # fmt: skip


def published(words: str, updates: list[Piece], *values: float | None) -> Case:
    """Values: mean and most seconds of delay, resume and pause, and replicas."""
    kinds = ("publish_delay", "publish_resume", "update_pause")
    names = [f"{kind}_seconds_{suffix}" for kind in kinds for suffix in ("mean", "max")] + ["publish_replicas"]
    expected = values or [None] * len(names)
    return Case(
        words,
        [OURS, rollout("a"), *updates],
        {},
        {(3, name): value for name, value in zip(names, expected, strict=True)},
    )


def update(version: str | None, source: str, replica: str | None = None, step: int | None = 3, **times: float) -> Piece:
    return weights(
        version, 0, step, source, replica=replica, **{f"{name}_at": at(second) for name, second in times.items()}
    )


NO_TIME: tuple[float | None, ...] = (None,) * 4
PUBLICATIONS = [
    published("how long it took from the trainer's request to each replica",
              [update("7", "trainer", requested=10, started=11, applied=12),
               update("7", "engine", "east", None, requested=13, started=13.5, applied=14, resumed=15),
               update("7", "engine", "west", None, requested=12, started=14, applied=18, resumed=20)], 6.0, 8.0, 7.5, 10.0, 5.0, 8.0, 2.0),
    published("an engine alone says when its own load began", [update("1", "engine", started=3, applied=5)], 2.0, 2.0, *NO_TIME, 1.0),
    published("a trainer alone says when weights were in place", [update("1", "trainer", requested=3, applied=5)], 2.0, 2.0, *NO_TIME, 1.0),
    published("a reload is no delay",
              [update("1", "trainer", requested=2, applied=2), update("1", "engine", "east", None, started=7200, applied=7201),
               update("1", "engine", "east", None, started=3, applied=4)], 2.0, 2.0, *NO_TIME, 1.0),
    published("a trainer that speaks of one replica",
              [update("1", "trainer", "east", requested=1), update("1", "trainer", "west", requested=5),
               update("1", "engine", "east", None, applied=6), update("1", "engine", "west", None, applied=6)], 3.0, 5.0, *NO_TIME, 2.0),
    published("a publication that no record mentions", []),
    published("a publication without a beginning", [update("1", "engine", applied=5)], None, None, *NO_TIME, 0.0),
    published("a publication without an end", [update("1", "trainer", requested=5)], None, None, *NO_TIME, 0.0),
    published("a publication without the end of one replica",
              [update("1", "trainer", requested=1), update("1", "engine", "east", None, applied=4), update("1", "engine", "west", None, started=2)],
              3.0, 3.0, *NO_TIME, 1.0),
    published("a load without an end is not the first one",
              [update("1", "trainer", requested=1), update("1", "engine", "east", None, started=2),
               update("1", "engine", "east", None, started=3, applied=4)], 3.0, 3.0, *NO_TIME, 1.0),
    published("a publication under a clock set back", [update("1", "engine", requested=9, applied=5, resumed=6)], None, None, *NO_TIME, 0.0),
    published("a publication of no step", [update("1", "engine", step=None, requested=1, applied=5)]),
    published("a publication of an unknown version", [update(None, "engine", requested=1, applied=5)]),
    published("a publication of another step", [update("1", "engine", step=9, requested=1, applied=5)]),
]  # fmt: skip
LENGTH = (3, "response_length")  # 3: the first attempt's 4 tokens count beside the second's 2
FIRST = training("a", 3, "x", time=at(5))
SECOND_AT = {"n": 2, "time": at(12)}
ATTEMPTS = [
    Case("the newest attempt counts",
         [*begins("x", 1, 1), FIRST, *begins("y", 10, 2), training("b", 3, "y", **SECOND_AT), told(3, 5, reward=1.0), told(3, 12, reward=3.0)],
         {"b": UNLINKED}, {(3, "reward"): 3.0, LENGTH: 2.0}),
    Case("it begins with this step", [*begins("x", 1, 1), FIRST, *begins("y", 10, 3), training("b", 3, "y", **SECOND_AT)], {}, {LENGTH: 2.0}),
    Case("the first attempt is known to have been one last",
         [FIRST, *begins("y", 10, 2), training("b", 3, "y", **SECOND_AT), says("x", "started", 0.5)], {"b": UNLINKED}, {LENGTH: 2.0}),
    Case("its first records are still to come", [*begins("x", 1, 1), FIRST, *begins("y", 10, 2)], {"a": UNLINKED}, {LENGTH: 4.0}),
    Case("it begins again in its process",
         [*begins("x", 1, 1), FIRST, says("x", "training_begins", 10, 2), training("b", 3, "x", **SECOND_AT)], {}, {LENGTH: 2.0}),
    Case("it goes back in its process, and had not said where it began",
         [says("x", "started", 0.5), FIRST, says("x", "training_begins", 10, 2, again=True), training("b", 3, "x", **SECOND_AT)], {}, {LENGTH: 2.0}),
    Case("a rank that has not been there again",
         [*begins("x", 1, 1), FIRST, training("a'", 3, "x", time=at(6)), says("z", "training_begins", 2, 1, rank=1), training("c", 3, "z", rank=1, time=at(5)),
          *begins("y", 10, 2), training("b", 3, "y", **SECOND_AT), training("b'", 3, "y", **SECOND_AT)], {}, {LENGTH: 8 / 3}),
    Case("two sessions at a time",
         [*begins("x", 1, 1), FIRST, *begins("y", 10, 2), training("b", 3, "y", **SECOND_AT), training("c", 4, "x", time=at(13))],
         {"a": UNLINKED, "b": UNLINKED, "c": UNLINKED}, {LENGTH: 3.0}),
    Case("another rank", [*begins("x", 1, 1), FIRST, says("y", "training_begins", 10, 2, rank=1), training("b", 3, "y", rank=1, **SECOND_AT)],
         {"a": UNLINKED, "b": UNLINKED}, {LENGTH: 3.0}),
    Case("no beginning is stated", [says("x", "started", 0.5), FIRST, says("y", "started", 9.5), training("b", 3, "y", **SECOND_AT)], {}, {LENGTH: 3.0}),
    Case("a writer that states none", [*begins("x", 1, 1), FIRST, says("y", "started", 9.5), training("b", 3, "y", **SECOND_AT)], {}, {LENGTH: 3.0}),
    Case("it begins later", [*begins("x", 1, 1), FIRST, *begins("y", 10, 4), training("b", 3, "y", **SECOND_AT)], {}, {LENGTH: 3.0}),
]  # fmt: skip
ODD = [
    Case("a record comes again in another segment", [OURS, OURS, rollout("a"), rollout("a")], {}, {(3, "backend.coverage"): 1.0}),
    Case("broken values of the trainer", [training("a", received=True, trainer_logprobs=[NAN, -1.5, 0.5, None])], {},
         {(3, "backend.coverage"): 0.25, (3, "backend.nonfinite_tokens"): 2.0, (3, "backend.impossible_tokens"): 1.0}),
    Case("what the trainer reports",
         [training("a", received=True, reward=0.5, entropy=[0.5, 1.5, NAN, 1.0], advantages=[-2.0, 2.0, 2.0, None])], {},
         {(3, "entropy"): 1.0, (3, "advantage_abs_mean"): 1.5, (3, "reward"): 0.5}),
    Case("no token under the mask", [training("a", received=True, mask=[False] * 4)], {}, {(3, "backend.k3_kl"): None, (3, "response_length"): 0.0}),
    Case("times that are unknown", [training("a", time=None), rollout("a", time=None)], {"a": EXACT}),
    Case("scalars of ranks, the newest of each", [told(3, 1, entropy=9.0), told(3, 2, entropy=1.0), told(3, 1, rank=1, entropy=2.0)], {}, {(3, "entropy"): 1.5}),
    Case("of several that are as new the largest", [told(3, 1, reward=0.5), told(3, 1, reward=0.25)], {}, {(3, "reward"): 0.5}),
]  # fmt: skip
A, B, C, NO_ROUTE = 11, 12, 13, 0  # fingerprints of two layers a token
ROUTED = training("a", received=True, routes=[A, B] * 4)
AGREEING = [A, B, A, C, B, B, A, B]  # 6 of 8
SEEN = rollout("a", routes=AGREEING)
UNKNOWN_ONE = rollout("a", routes=[A, B, A, NO_ROUTE, B, B, A, B])


def routing(
    agreement: float | None, coverage: float | None, mismatch: float | None
) -> dict[tuple[int, str], float | None]:
    return {
        (3, "routing_agreement"): agreement,
        (3, "routing_coverage"): coverage,
        (3, "routing_mismatch_frac"): mismatch,
    }


ROUTES = [
    Case("routes agree over tokens and layers", [ROUTED, SEEN], {"a": {"routes_compared": 8, "routes_equal": 6}}, routing(6 / 8, 1.0, 0.0)),
    Case("no routes", [training("a", received=True), rollout("a")], {}, routing(None, None, None)),
    Case("routes of the trainer alone", [ROUTED, rollout("a")], {}, routing(None, None, None)),
    Case("routes of the engine alone", [training("a", received=True), SEEN], {}, routing(None, None, None)),
    Case("routes of other layers", [ROUTED, rollout("a", routes=[A] * 4)], {"a": {"routes_match": False}}, routing(None, None, 1.0)),
    Case("routes of other tokens", [ROUTED, rollout("a", token_ids=[9] * 4, routes=AGREEING)], {}, routing(None, None, None)),
    Case("an unknown route", [ROUTED, UNKNOWN_ONE], {}, routing(6 / 7, 7 / 8, 0.0)),
    Case("a route unknown on both sides", [training("a", received=True, routes=[A, B, A, NO_ROUTE, A, B, A, B]), UNKNOWN_ONE], {}, routing(6 / 7, 7 / 8, 0.0)),
    Case("no route at all", [ROUTED, rollout("a", routes=[NO_ROUTE] * 8)], {}, routing(None, 0.0, 0.0)),
    Case("routes under the mask", [training("a", received=True, routes=[A, B] * 4, mask=[True, True, False, True]), SEEN], {}, routing(5 / 6, 1.0, 0.0)),
    Case("no route under the mask", [training("a", received=True, routes=[A, B] * 4, mask=[False] * 4), SEEN], {}, routing(None, None, 0.0)),
    Case("routes of an engine that stopped earlier", [ROUTED, rollout("a", 2, routes=AGREEING[:4])], {}, routing(3 / 4, 4 / 8, 0.0)),
    Case("routes of a trainer that went on", [training("a", n=5, received=True, routes=[A, B] * 5), SEEN], {}, routing(6 / 8, 8 / 10, 0.0)),
    Case("routes around a tool's answer",
         [training("a", n=5, received=True, routes=[A, B] * 5, mask=[True, True, False, True, True]), rollout("a", token_ids=[0, 1, 3, 4], routes=AGREEING)],
         {}, routing(6 / 8, 1.0, 0.0)),
    Case("routes of no token", [training("a", n=0, received=True, routes=[]), rollout("a", 0, routes=[])], {}, routing(None, None, None)),
]  # fmt: skip
CASES = [*NAMES, *TOKENS, *REQUESTS, *VERSIONS, *PUBLICATIONS, *ATTEMPTS, *ODD, *ROUTES]


def tables(pieces: Iterable[tuple[int, Piece]]) -> dict[str, pa.Table]:
    """Records, each the only one of a segment, as they are read."""
    found: dict[str, list[pa.Table]] = {}
    for number, (kind, row, writer) in pieces:
        table = records(kind, row)
        key = [pa.array([RUN]), pa.array([f"{number:03d}"]), pa.array([0], pa.int32())]
        names = ["run", "segment_id", "row", *table.column_names, "writer"]
        made = pa.Table.from_arrays([*key, *table.columns, pa.array([writer])], names=names)
        found.setdefault(kind, []).append(made)
    return {kind: pa.concat_tables(some) for kind, some in found.items()}


def bring(batches: Iterable[list[tuple[int, Piece]]]) -> tuple[Run, dict[tuple[int, str], float]]:
    live, metrics = Live(), {}
    for batch in batches:
        arrived = {kind: Arrived.of(kind, table) for kind, table in tables(batch).items()}
        for computed in live.add(arrived).computed:
            for place, (_, step) in enumerate(computed.steps):
                metrics |= {(step, key): float(values[place]) for key, values in computed.values.items()}
    return live.memory.run(RUN), metrics


def sequences(run: Run) -> dict[str, Row]:
    """By name and step."""
    found: dict[str, Row] = {}
    names = {
        step.trained["segment"][row]: f"{step.trained['sample'][row]}@{number}"
        for number, step in run.steps.items()
        for row in range(len(step.trained))
    }
    for (segment, _, column), value in live_sequences(run):
        found.setdefault(names[segment], {})[column] = value
    return found


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.words)
def test_records_to_metrics(case: Case) -> None:
    pieces = list(enumerate(case.pieces))
    run, metrics = bring([pieces])
    found = sequences(run)
    for name, expected in case.sequences.items():
        (sequence,) = [row for key, row in found.items() if name in {key, key.partition("@")[0]}]
        assert {column: sequence[column] for column in expected} == expected
    for key, value in case.metrics.items():
        assert metrics[key] == pytest.approx(NAN if value is None else value, nan_ok=True, rel=1e-6), key
    for order in ([[piece] for piece in pieces], [[piece] for piece in reversed(pieces)]):
        again, values = bring(order)
        assert sequences(again) == found
        assert {key: repr(value) for key, value in values.items()} == {
            key: repr(value) for key, value in metrics.items()
        }


def test_without_the_times_of_steps_tokens_of_a_late_mark_are_unknown() -> None:
    said = (Decision(2, 10, 11, 12), Decision(4, 13, 14, 16))
    record = Decided(((0, 2, "1"), (2, 4, "2")), said, 4, "here", 0, None, 0, None, None)
    assert resolved(record, [[], [(15, "3")]], None) == ((0, 2, "1"), (2, 4, None))
    assert resolved(record, [[], [(14, "3")]], None) == ((0, 2, "1"), (2, 4, "3")), "all of these tokens came later"


RARE = {"rollout_logprobs": [-4.0] * 4, "trainer_logprobs": [-4.1] * 4}  # e^-16 = 1e-7
LIKELY = {"rollout_logprobs": [-3.0] * 4, "trainer_logprobs": [-3.1] * 4}  # e^-12 = 6e-6
FIVE = {"mask": [True] * 4 + [False], "rollout_logprobs": [-4.0] * 5, "trainer_logprobs": [-4.0] * 5}


def answers(count: int, group: str | None = "p", **fields: Any) -> list[Piece]:
    return [training(f"{group}{n}", received=True, group_id=group, **RARE | fields) for n in range(count)]


def other(**fields: Any) -> list[Piece]:
    return [training("x", received=True, group_id="p", **RARE | fields)]


@pytest.mark.parametrize(
    ("words", "pieces", "grouped", "copies"),
    [
        ("alike", answers(8), 8, 7),
        ("alike by chance", answers(8, **LIKELY), 8, 0),
        ("the trainer scales by a temperature, the engine does not", answers(8, trainer_logprobs=[-0.1] * 4), 8, 0),
        ("two prompts", answers(4) + answers(4, "q", token_ids=[5, 6, 7, 8]), 8, 6),
        ("one answer to each", answers(1) + answers(1, "q"), 0, 0),
        ("prompts are not known", answers(3, None), 0, 0),
        ("another answer", answers(1) + other(token_ids=[0, 1, 2, 9]), 2, 0),
        ("one sequence, recorded by two ranks", answers(1) + answers(1, rank=1), 0, 0),
        ("a broken one", answers(2) + other(rollout_logprobs=[-4.0] * 3 + [NAN]), 2, 1),
        ("nothing under the mask", answers(2, mask=[False] * 4), 0, 0),
        ("alike under the mask",
         [training(f"m{n}", n=5, received=True, group_id="p", token_ids=[0, 1, 2, 3, n], **FIVE) for n in range(2)], 2, 1),
        ("the engine knows the prompts",
         [training(f"s{n}", trainer_logprobs=[-4.1] * 4) for n in range(3)]
         + [rollout(f"s{n}", logprobs=[-4.0] * 4, prompt_hash="a" if n else "b") for n in range(3)], 2, 1),
    ],
)  # fmt: skip
def test_copies_are_counted_where_chance_gives_none(words: str, pieces: list[Piece], grouped: int, copies: int) -> None:
    (computed,) = (
        Live().add({name: Arrived.of(name, table) for name, table in tables(enumerate(pieces)).items()}).computed
    )
    assert (computed.counts["grouped"].tolist(), computed.counts["copies"].tolist()) == ([grouped], [copies]), words


TWO = spans((0, 1, "2"), (1, 4, "4"))


@pytest.mark.parametrize(
    ("words", "engine", "trainer", "kind"),
    [
        ("one version", {"version": "3"}, "5", (3, False, 2)),
        ("several, 3.5 in the mean", {"spans": TWO}, "4", (4, True, 1)),
        ("unknown to the engine", {"version": None}, "5", (None, None, None)),
        ("no tokens of the engine said", {"spans": None}, "5", (None, None, None)),
        ("unknown of some tokens", {"spans": spans((0, 2, "3"), (2, 4, None))}, "5", (None, None, None)),
        ("unknown to the trainer", {"version": "3"}, None, (3, False, None)),
        ("several, unknown to the trainer", {"spans": TWO}, None, (4, True, None)),
        ("a label that was never published", {"version": "early"}, "5", (None, False, None)),
        ("several, one of them never published", {"spans": spans((0, 2, "3"), (2, 4, "early"))}, "5", (None, True, None)),
        ("the trainer's was never published", {"version": "3"}, "late", (3, False, None)),
    ],
)  # fmt: skip
def test_slices_of_a_step_by_version(words: str, engine: Row, trainer: str | None, kind: tuple[Any, ...]) -> None:
    pieces = list(enumerate([training("a", weight_version=trainer), rollout("a", **engine)]))
    (computed,) = Live().add({name: Arrived.of(name, table) for name, table in tables(pieces).items()}).computed
    (found,) = computed.slices[0].as_py()
    assert tuple(found[name] for name in ("version", "in_flight", "lag")) == kind, words
