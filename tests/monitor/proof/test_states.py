"""States of a running engine, brought about again: what scorers are asked for, and which states a recorded r is made of."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from logprobe.monitor.proof.experiments.experiment import bisect
from logprobe.monitor.proof.experiments.knobs import chosen
from logprobe.monitor.proof.sample import Span, TokenSequence
from logprobe.monitor.proof.scorers.running import ENGINE, Outcome
from logprobe.monitor.proof.scoring import Scorers, score
from logprobe.monitor.proof.setup import Setup

TOKENS, SEQUENCES = 20, 24
MODELS = {str(version): Path(f"checkpoints/{version}") for version in range(6)}
KNOBS = chosen(["weights", "enable_prefix_caching", "in_flight"])


class World:
    """Scorers whose answers are computed: r has what old prefixes and unfinished requests do to it, each its own noise."""

    def __init__(self) -> None:
        rng = np.random.default_rng(5)
        self.jobs: list[dict] = []
        self.exact = -1 - rng.random((SEQUENCES, TOKENS))
        self.prefix, self.in_flight = 0.1 * rng.standard_normal((2, SEQUENCES, TOKENS))
        self.in_flight[1::2] = 0  # sequences that no update interrupted

    def __call__(self, module: str, job: dict, **_: object) -> Outcome:
        self.jobs.append(job)
        rows = [int(sequence["prompt_ids"][0]) for sequence in job["sequences"]]
        if module != ENGINE:
            return Outcome({"values": self.exact[rows].tolist(), "tokens_per_s": 1.0}, None, 1.0)
        replay = job["replay"] or {"in_flight": False, "prefix": None, "shared": False}
        values = self.exact + replay["in_flight"] * self.in_flight
        if (replay["prefix"], replay["shared"]) == ("0", True):
            values = values + self.prefix
        return Outcome({"decode": values[rows].tolist(), "settings": {}, "tokens_per_s": 1.0}, None, 1.0)

    def sequences(self) -> list[TokenSequence]:
        r = self.exact + self.prefix + self.in_flight
        spans = ((Span(0, 8, "4"), Span(8, TOKENS, "5")), ())
        return [
            TokenSequence(
                sample_id=str(row),
                prompt_ids=(row,),
                response_ids=tuple(range(TOKENS)),
                rollout=r[row],
                trainer=self.exact[row],
                rollout_version="5",
                trainer_version="5",
                spans=spans[row % 2],
            )
            for row in range(SEQUENCES)
        ]


def test_two_states_at_once_are_both_named():
    world = World()
    found = bisect(world.sequences(), Setup(MODELS), knobs=KNOBS, run=world)
    assert found.decision.departs_all == ("engine_state",)
    assert set(found.smallest_set) == {"enable_prefix_caching", "in_flight"}
    assert found.parity
    first = found.arms[0]
    assert (first.knob, first.setting) == ("enable_prefix_caching", "shared prefixes kept from 0")
    assert found.arms[1].knob == "in_flight"


def test_of_many_checkpoints_the_oldest_and_the_newest_before_are_tried():
    world = World()
    bisect(world.sequences(), Setup(MODELS), knobs=KNOBS, run=world)
    assert {job["replay"]["prefix"] for job in world.jobs if job.get("replay")} == {None, "0", "4"}


def test_an_engine_is_given_the_checkpoints_that_it_goes_through_and_no_others():
    world = World()
    scorers = Scorers(world.sequences(), Setup(MODELS), world)
    scorers.replayed(in_flight=True, prefix="1", shared=True)
    (job,) = world.jobs
    assert job["checkpoints"] == {version: str(MODELS[version]) for version in ("1", "4", "5")}
    assert job["replay"] == {"in_flight": True, "prefix": "1", "shared": True}
    assert {sequence["version"] for sequence in job["sequences"]} == {"5"}
    assert job["overrides"] == {"enable_prefix_caching": True}


@pytest.mark.parametrize("known", [{"5"}, {"0", "5"}])
def test_sequences_without_the_checkpoint_of_a_span_are_left_out(known):
    world = World()
    setup = Setup({version: MODELS[version] for version in known})
    fresh = Scorers(world.sequences(), setup, world).replayed(in_flight=True)
    assert [values is None for values in fresh.decode] == [row % 2 == 0 for row in range(SEQUENCES)]


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ("prefill", "decode path: the engine takes no logits processor, as beside speculative decoding"),
        ("decode", "prefill path: sampling params other than the temperature apply to sampled tokens only"),
        (None, "engine: no such file"),
    ],
)
def test_an_engine_is_started_once_and_what_it_could_not_score_is_said(answer, said):
    world = World()

    def run(module: str, job: dict, **more: object) -> Outcome:
        outcome = world(module, job, **more)
        if module != ENGINE:
            return outcome
        return Outcome(answer and {answer: outcome.answer["decode"], "settings": {}}, "no such file", 1.0)

    found = score(world.sequences(), Setup(MODELS), run=run)
    assert sum("replay" in job for job in world.jobs) == 1
    assert [words for words in found.not_measured if words.split(":")[0] in said] == [said]
    assert found.path == ("decode" if answer == "decode" else "prefill")
