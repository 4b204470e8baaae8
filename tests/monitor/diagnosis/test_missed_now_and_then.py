"""Updates that an engine misses now and then: every third or tenth batch is of the weights before; and healthy runs whose K3 is as regular."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from zoo.rollouts import Fault, Lag, Noise, Run, Tasks, Trend, rollouts

from logprobe.monitor.judging.document import DiagnosisDocument, FindingDocument
from logprobe.monitor.judging.explain import diagnosed
from logprobe.monitor.judging.frame import Frame
from logprobe.monitor.judging.records import WeightRecord, Weights
from logprobe.monitor.judging.weight_readings import Reading, Readings

MISSED = "missed_weight_sync"
BF16, EXACT = Noise(5e-4), Noise(1e-13)
UPDATE = 2e-3  # K3 of one update
UNKNOWN = Lag(known=False)


def evidence(run: Run, last: int | None = None) -> Frame:
    return rollouts(run).frame(last)


def missing(every: int, noise: Noise = BF16, *, since: int = 0, told: bool = False, **more: object) -> Run:
    return Run(noise=noise, fault=Fault("skipped_updates", UPDATE, since, every=every, told=told), **more)  # type: ignore[arg-type]


def loads(run: Run) -> Weights:
    """The engine's records: labels of every version, loads of those that arrived."""
    common = {"source": "engine", "replica": None, "pause_mode": None, "cache_cleared": True, "tensors": None}
    every = run.fault.every
    return Weights(
        tuple(
            WeightRecord(str(v), v, loaded=v % every != every - 1, checksum=None, **common)  # type: ignore[arg-type]
            for v in range(1, run.steps)
        )
    )


def readings(run: Run) -> Readings:
    """Fingerprints: the trainer's of each version, and the engine's, which are those of the version before where an update was missed."""
    rows = []
    for version in range(run.steps):
        held = version - (version % run.fault.every == run.fault.every - 1)
        rows += [_reading("trainer", version, version), _reading("worker", version, held)]
    return Readings(tuple(rows))


def _reading(source: str, version: int, held: int) -> Reading:
    tensors = {"q": held, "norm": 9}
    return Reading(
        source, None, None, str(version), version, str(held), "same", unannounced=False, tensors=tensors, adapter=None
    )


def missed_of(found: DiagnosisDocument) -> FindingDocument | None:
    return next((finding for finding in found["findings"] if finding["cause"] == MISSED), None)


@pytest.mark.parametrize("every", [3, 10])
def test_steps_that_do_not_agree_to_rounding_between_steps_that_do(every: int) -> None:
    found = diagnosed(evidence(missing(every, EXACT)))
    first = found["findings"][0]
    assert (first["cause"], first["urgency"], first["vetoes"]) == (MISSED, "act", True)
    assert (found["verdict"], found["layer"], found["correction"]["advice"]) == (
        "critical",
        "inference_path",
        "do_not_enable",
    )
    assert (first["evidence"]["every"], first["since_step"], first["share"]["now"]) == (
        every,
        every - 1,
        pytest.approx(1, abs=0.01),
    )
    assert "in all others they agree to rounding" in first["explanation"]


def test_where_no_version_is_known_batches_of_older_weights_look_the_same() -> None:
    found = diagnosed(evidence(missing(10, EXACT, lag=UNKNOWN)))
    possible = missed_of(found)
    assert possible is not None
    assert (possible["confidence"], possible["urgency"], possible["vetoes"]) == (0.4, "watch", False)
    assert (found["layer"], found["correction"]["advice"]) == ("unknown", "do_not_enable")
    assert missed_of(diagnosed(evidence(missing(10, lag=UNKNOWN)))) is None  # of noise, nothing tells them from a lag


@pytest.mark.parametrize("every", [3, 10])
def test_labels_that_came_without_a_load_decide(every: int) -> None:
    run = missing(every)
    found = diagnosed(evidence(replace(run, weights=loads(run))))
    first = found["findings"][0]
    assert (first["cause"], first["urgency"]) == (MISSED, "act")
    assert first["confidence"] == 0.95
    excess = UPDATE / every
    assert first["share"]["now"] == pytest.approx(excess / (excess + BF16.level), abs=0.1)


def test_fingerprints_of_versions_that_were_mended_since_decide() -> None:
    run = missing(10)
    known = replace(evidence(run), readings=readings(run))
    first = diagnosed(known)["findings"][0]
    assert (first["cause"], first["confidence"], first["evidence"]["versions"]) == (MISSED, 0.99, 40)
    healthy = replace(evidence(Run(noise=BF16)), readings=readings(run))  # an update may be too small to be seen in K3
    proven = missed_of(diagnosed(healthy))
    assert proven is not None
    assert (proven["confidence"], proven["evidence"]["versions"]) == (0.99, 40)
    ended = Readings(tuple(row for row in readings(run).rows if int(row.version or 0) < 100 or row.source == "trainer"))
    late = tuple(_reading("worker", version, version) for version in range(100, 400))
    assert Readings((*ended.rows, *late)).recurring == ()


def test_labels_that_say_it_are_a_lag() -> None:
    found = diagnosed(evidence(missing(10, told=True)))
    assert missed_of(found) is None
    lag = next(finding for finding in found["findings"] if finding["cause"] == "staleness")
    by_lag = {
        int(word.split(": ")[0]): float(word.split(": ")[1]) for word in str(lag["evidence"]["by_lag"]).split(", ")
    }
    assert by_lag[1] == pytest.approx(UPDATE + BF16.level, rel=0.2)
    assert by_lag[0] == pytest.approx(BF16.level, rel=0.2)


def test_growth_beside_it_is_still_named_and_corrected_unless_the_fault_is_proven() -> None:
    run = missing(10, trend=Trend(250, 40))
    found = diagnosed(evidence(run))
    assert "late_growth" in [finding["cause"] for finding in found["findings"]]
    assert found["correction"]["advice"] == "enable"
    proven = diagnosed(replace(evidence(missing(10)), weights=loads(run)))
    assert proven["correction"]["advice"] == "do_not_enable"


HEALTHY = {
    "two datasets in turn": Run(noise=BF16, tasks=Tasks(2, 1.0, 3.0)),
    "learning-rate restarts, unknown versions": Run(noise=BF16, lag=Lag((0, 1), UPDATE, restarts=10, known=False)),
    "learning-rate restarts, one version behind": Run(noise=BF16, lag=Lag((1,), UPDATE, restarts=10)),
}


@pytest.mark.parametrize("name", HEALTHY)
def test_what_is_regular_and_healthy_is_not_named(name: str) -> None:
    found = diagnosed(evidence(HEALTHY[name]))
    assert missed_of(found) is None
    assert (found["verdict"], found["layer"], found["correction"]["advice"]) == ("healthy", "none", "not_needed")


def test_a_spike_is_not_named() -> None:
    drawn = rollouts(missing(10, EXACT))
    t = np.where((drawn.step == 200)[:, None], drawn.t, drawn.r)
    assert missed_of(diagnosed(replace(drawn, t=t).frame())) is None
