"""The live probe against a server with the engine's rules: what it finds, what it costs, and when it says that it does not know."""

from __future__ import annotations

import json
import math
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from recorded_home import take_in
from segments import RUN, Clock, records, trained
from served_engine import LONGEST, ServedEngine, served_engine

from logprobe.app.processes import probe_part
from logprobe.collectors.errors import ConfigurationError, EngineError
from logprobe.collectors.spool.segments import SpoolWriter
from logprobe.collectors.versions import Mark, MarkFile
from logprobe.monitor import settings_file
from logprobe.monitor.analysis.step_job import StepJob
from logprobe.monitor.home import Home
from logprobe.monitor.ingest.ingest import Ingester
from logprobe.monitor.proof.live.engine import Model
from logprobe.monitor.proof.live.look import Look, ProbeSettings, confirmed, look
from logprobe.monitor.proof.live.prober import Prober
from logprobe.monitor.store.store import Store

PROMPT = [11, 12, 13]
COUNT = 4  # sequences
COST = len(PROMPT) + 4 + 1
RAW = {"summary": {"logprobs_mode": "raw_logprobs"}}


@pytest.fixture
def engine() -> Iterator[ServedEngine]:
    with served_engine() as served:
        yield served


class Recorded:
    """A run whose engine sampled `COUNT` sequences of version 7; r of the token at place i of prompt and answer is −i."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.writer = SpoolWriter(store.home.path, RUN, "w")
        self.now = datetime.now(UTC)

    def mark(self, version: int = 7, *, ago: float = 60.0) -> None:
        at = (datetime.now(UTC) - timedelta(seconds=ago)).timestamp()
        MarkFile(self.store.home.path, RUN).append(Mark(str(version), at))

    def config(self, document: dict, sampling: dict | None = None) -> None:
        rows = [
            {"fingerprint": "engine", "kind": "engine_config", "document": json.dumps(document)},
            {"fingerprint": "s", "kind": "sampling_params", "document": json.dumps(sampling or {"temperature": 1.0})},
        ]
        self.writer.write("config", records("config", *rows))

    def rollouts(self, shift: float = 0.0, **fields: object) -> None:
        """Answers of 4 tokens; the first half found their prompt in the cache, and theirs are `shift` off."""
        rows = [
            {
                "time": self.now - timedelta(seconds=10 + at),
                "sample_id": f"s{at}",
                "token_ids": [21, 22, 23, 24],
                "logprobs": [-float(len(PROMPT) + i) + (shift if at < COUNT // 2 else 0.0) for i in range(4)],
                "spans": [{"start": 0, "end": 4, "version": "7"}],
                "prompt_hash": "ab",
                "prompt_token_ids": PROMPT if at == 0 else None,
                "cached_prefix_tokens": 2 if at < COUNT // 2 else 0,
                "sampling_id": "s",
                "engine_config_id": "engine",
                **fields,
            }
            for at in range(COUNT)
        ]
        self.writer.write("rollout", records("rollout", *rows))

    def train(self, step: int) -> None:
        self.writer.write("training", records("training", trained(f"t{step}", step)))

    def ingest(self) -> None:
        Ingester(self.store).run_once()

    def look(self, engine: ServedEngine, **settings: object) -> Look:
        given = ProbeSettings(url=engine.url, **{"share": 1.0, **settings})
        return look(self.store, self.store.home, RUN, probe_part.engine(given), given)


@pytest.fixture
def run(home: Path) -> Iterator[Recorded]:
    with Store.open(Home(home)) as store:
        yield Recorded(store)


@pytest.fixture
def sampled(run: Recorded) -> Recorded:
    run.mark()
    run.config(RAW)
    run.rollouts()
    run.ingest()
    return run


# The engine has sampled 16 tokens; with share 1.0 two sequences of 8 tokens are affordable.


def test_an_engine_that_confirms_itself_has_no_gap(sampled: Recorded, engine: ServedEngine) -> None:
    found = sampled.look(engine)
    assert found.gap is not None
    assert (found.gap.k3, found.gap.abs_diff_mean, found.gap.tokens, found.gap.broken) == (0, 0, 8, 0)
    assert (found.sequences, found.scored, found.version, found.reason) == (2, 2 * COST, "7", None)
    assert [body["prompt"] for body in engine.scored] == [[*PROMPT, 21, 22, 23, 24]] * 2
    assert all(body["prompt_logprobs"] == 0 and body["vllm_xargs"] == {"logprobe_probe": 1} for body in engine.scored)
    assert len({body["cache_salt"] for body in engine.scored}) == 2


def test_a_state_that_went_bad_is_told_by_whose_prompt_was_cached(run: Recorded, engine: ServedEngine) -> None:
    run.mark()
    run.config(RAW)
    run.rollouts(shift=0.5)
    for step in range(8):  # enough tokens for all four
        run.train(step)
    run.ingest()
    StepJob(run.store).run_once()
    found = run.look(engine)
    assert found.sequences == COUNT
    assert found.cached is not None
    assert found.uncached is not None
    assert found.cached.k3 == pytest.approx(math.exp(-0.5) + 0.5 - 1)
    assert found.uncached.k3 == 0
    assert found.gap is not None
    assert found.gap.k3 == pytest.approx(found.cached.k3 / 2)


def test_a_token_without_probability_is_broken_and_not_a_large_number(sampled: Recorded, engine: ServedEngine) -> None:
    engine.logprob = lambda tokens, place: -math.inf if place == len(PROMPT) else -float(place)
    found = sampled.look(engine)
    assert found.gap is not None
    assert (found.gap.k3, found.gap.broken) == (0, 0.25)


def test_without_a_mark_the_version_is_unknown_and_nothing_is_asked(run: Recorded, engine: ServedEngine) -> None:
    run.config(RAW)
    run.rollouts()
    run.ingest()
    assert run.look(engine).reason == "no_version"
    assert engine.scored == []


@pytest.mark.parametrize(
    "fields",
    [
        {"spans": [{"start": 0, "end": 4, "version": None}]},
        {"spans": [{"start": 0, "end": 4, "version": "6"}]},
        {"spans": [{"start": 0, "end": 2, "version": "6"}, {"start": 2, "end": 4, "version": "7"}]},
        {"adapter": "lora"},
        {"prompt_token_ids": None},
    ],
)
def test_only_sequences_of_the_present_weights_alone_are_scored(
    run: Recorded, engine: ServedEngine, fields: dict
) -> None:
    run.mark()
    run.config(RAW)
    run.rollouts(**fields)
    run.ingest()
    assert run.look(engine).reason == "no_sequence"
    assert engine.scored == []


@pytest.mark.parametrize(
    ("engine_document", "sampling", "words"),
    [
        ({"summary": {"logprobs_mode": "processed_logprobs"}}, {"temperature": 0.7}, "temperature 0.7"),
        ({"summary": {"logprobs_mode": "processed_logprobs"}}, {"temperature": 1.0, "top_p": 0.9}, "top_p"),
        ({"summary": {"logprobs_mode": "processed_logits"}}, {"temperature": 1.0}, "processed_logits"),
        ({}, {"temperature": 1.0}, "not recorded"),
    ],
)
def test_what_prompt_log_probs_cannot_be_compared_with_is_not_compared(
    run: Recorded, engine: ServedEngine, engine_document: dict, sampling: dict, words: str
) -> None:
    run.mark()
    run.config(engine_document, sampling)
    run.rollouts()
    run.ingest()
    found = run.look(engine)
    assert (found.reason, found.gap) == ("incomparable", None)
    assert words in found.why


def test_of_several_engines_the_one_behind_the_address_has_to_be_named(run: Recorded, engine: ServedEngine) -> None:
    run.mark()
    run.config(RAW)
    run.rollouts(replica="a")
    run.rollouts(replica="b")
    run.ingest()
    assert "a, b" in run.look(engine).why
    assert run.look(engine, replica="b").gap is not None


def test_weights_that_change_meanwhile_discard_the_result_and_keep_its_price(
    sampled: Recorded, engine: ServedEngine
) -> None:
    engine.before = lambda: sampled.mark(8, ago=0.0)
    found = sampled.look(engine)
    assert (found.reason, found.gap, found.scored) == ("discarded", None, 2 * COST)


def test_a_load_that_is_recorded_later_discards_the_result(sampled: Recorded, engine: ServedEngine) -> None:
    found = sampled.look(engine)
    home = sampled.store.home
    assert confirmed(found, sampled.store, home, None) == found
    row = {"time": sampled.now, "source": "engine", "applied_at": sampled.now - timedelta(seconds=5), "version": None}
    sampled.writer.write("weights", records("weights", row))
    sampled.ingest()
    assert confirmed(found, sampled.store, home, None).reason == "discarded"


@pytest.mark.parametrize(("running", "waiting"), [(33, 0), (0, 1)])
def test_a_busy_engine_is_left_alone(sampled: Recorded, engine: ServedEngine, running: int, waiting: int) -> None:
    engine.running, engine.waiting = running, waiting
    found = sampled.look(engine)
    assert (found.reason, found.scored) == ("busy", 0)
    assert engine.scored == []


def test_an_engine_that_gets_busy_is_left_alone_from_then_on(sampled: Recorded, engine: ServedEngine) -> None:
    engine.before = lambda: setattr(engine, "waiting", 1)
    found = sampled.look(engine)
    assert found.gap is not None
    assert (found.sequences, len(engine.scored)) == (1, 1)


@pytest.mark.parametrize("share", [0.001, 0.49, 0.5, 0.99, 1.0])
def test_the_share_is_never_exceeded(sampled: Recorded, engine: ServedEngine, share: float) -> None:
    found = sampled.look(engine, share=share)
    assert found.scored == sum(len(body["prompt"]) + 1 for body in engine.scored)
    assert found.scored <= share * 4 * COUNT
    assert (found.reason == "budget") == (share < 0.5)


def test_a_sequence_that_leaves_no_room_is_not_sent(run: Recorded, engine: ServedEngine) -> None:
    run.mark()
    run.config(RAW)
    n = LONGEST - len(PROMPT)
    run.rollouts(token_ids=list(range(n)), logprobs=[-1.0] * n, spans=[{"start": 0, "end": n, "version": "7"}])
    run.ingest()
    found = run.look(engine)
    assert (found.reason, engine.scored) == ("incomparable", [])


@pytest.mark.parametrize(
    "answer",
    [b"", b"{}", b"[]", b'{"choices": [{"prompt_logprobs": null}]}', b'{"choices": [{"prompt_logprobs": [null]}]}'],
)
def test_an_answer_that_makes_no_sense_is_no_result(sampled: Recorded, engine: ServedEngine, answer: bytes) -> None:
    engine.answer = answer
    found = sampled.look(engine)
    assert (found.reason, found.gap) == ("engine", None)
    assert "did not return prompt log-probs" in found.why


def test_a_key_is_sent_and_its_lack_is_said(
    sampled: Recorded, engine: ServedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine.key = "secret"
    assert "HTTP 401" in sampled.look(engine).why
    monkeypatch.setenv("ENGINE_KEY", "secret")
    assert sampled.look(engine, key_env="ENGINE_KEY").gap is not None
    with pytest.raises(ConfigurationError, match="NO_SUCH_KEY is not set"):
        probe_part.engine(ProbeSettings(url=engine.url, key_env="NO_SUCH_KEY"))


def test_an_address_of_a_cloud_s_metadata_is_not_asked() -> None:
    engine = probe_part.engine(ProbeSettings(url="http://169.254.169.254"))
    with pytest.raises(EngineError, match="cannot be reached"):
        engine.score(Model("m", None), [1], [2])


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("probe: [{url: 'file:///etc/passwd'}]", "probe.0.url"),
        ("probe: [{url: 'http://user:word@host'}]", "probe.0.url"),
        ("probe: [{url: 'http://a', share: 2}]", "probe.0.share"),
        ("probe: [{url: 'http://a', shares: 1}]", "probe.0.shares"),
        ("prob: []", "prob"),
        ("probe: [", "invalid YAML"),
    ],
)
def test_settings_that_are_wrong_name_their_field(home: Path, text: str, words: str) -> None:
    home.mkdir(exist_ok=True)
    (home / settings_file.FILE).write_text(text)
    with pytest.raises(ConfigurationError, match=words):
        probe_part.load(Home(home))


# --- While the home is served ---


@pytest.fixture
def clock() -> Clock:
    return Clock()


def prober_of(run: Recorded, engine: ServedEngine, clock: Clock, **settings: object) -> Prober:
    given = ProbeSettings(url=engine.url, **{"share": 1.0, **settings})
    return Prober(run.store, given, probe_part.engine(given), threading.Event(), clock=clock)


def written(store: Store) -> list[dict]:
    take_in(store)
    query = (
        "SELECT step, metric, value FROM step_metrics WHERE metric LIKE 'probe.%' AND value IS NOT NULL ORDER BY ALL"
    )
    return store.query(query).to_pylist()


def notes(store: Store) -> list[tuple[str, str]]:
    Ingester(store).run_once()
    query = "SELECT event, severity FROM health_records WHERE component = 'probe' ORDER BY time, event"
    return [(row["event"], row["severity"]) for row in store.query(query).to_pylist()]


def test_a_result_is_recorded_with_the_next_step(sampled: Recorded, engine: ServedEngine, clock: Clock) -> None:
    sampled.train(3)
    sampled.ingest()
    prober = prober_of(sampled, engine, clock)
    assert prober.tick()["state"] == "ok"
    clock.seconds = 10.0
    prober.tick()
    assert written(sampled.store) == []
    sampled.train(4)
    sampled.ingest()
    prober.tick()
    expected = [("probe.abs_diff_mean", 0.0), ("probe.k3", 0.0)]
    assert written(sampled.store) == [{"step": 4, "metric": name, "value": value} for name, value in expected]
    assert notes(sampled.store) == []


def test_the_price_of_all_looks_together_keeps_the_share(sampled: Recorded, engine: ServedEngine, clock: Clock) -> None:
    prober = prober_of(sampled, engine, clock, sequences=1)
    for step in range(6):
        clock.seconds += 100.0
        prober.tick()
        clock.seconds += 10.0
        prober.tick()
        sampled.train(step)
        sampled.ingest()
        prober.tick()
        written(sampled.store)
    budget = sampled.store.read("probe_budget", run=RUN).to_pylist()[0]
    assert budget["scored"] == sum(len(body["prompt"]) + 1 for body in engine.scored)
    assert COST <= budget["scored"] <= budget["sampled"]


def test_an_engine_that_is_gone_gives_one_note_and_another_when_it_is_back(
    sampled: Recorded, engine: ServedEngine, clock: Clock
) -> None:
    gone = ServedEngine()
    gone.url = "http://127.0.0.1:9"  # discard: nothing listens there
    prober = prober_of(sampled, gone, clock)
    for _ in range(5):
        assert prober.tick()["state"] == "engine"
        clock.seconds += 100.0
    assert notes(sampled.store) == [("probe_engine", "warning")]
    prober._engine = probe_part.engine(ProbeSettings(url=engine.url))
    assert prober.tick()["state"] == "ok"
    assert notes(sampled.store) == [("probe_engine", "warning"), ("probe_works", "info")]


def test_a_busy_engine_is_noted_once(sampled: Recorded, engine: ServedEngine, clock: Clock) -> None:
    engine.waiting = 1
    prober = prober_of(sampled, engine, clock)
    for _ in range(5):
        assert prober.tick()["state"] == "busy"
        clock.seconds += 100.0
    assert notes(sampled.store) == [("probe_busy", "info")]
    assert engine.scored == []


def test_a_discarded_result_is_noted_and_only_its_price_recorded(
    sampled: Recorded, engine: ServedEngine, clock: Clock
) -> None:
    engine.before = lambda: sampled.mark(8, ago=0.0)
    prober = prober_of(sampled, engine, clock)
    assert prober.tick()["state"] == "discarded"
    clock.seconds = 10.0
    sampled.train(4)
    sampled.ingest()
    prober.tick()
    prober.tick()
    assert written(sampled.store) == []
    assert sampled.store.read("probe_budget", run=RUN)["scored"].to_pylist() == [2 * COST]
    assert notes(sampled.store) == [("probe_discarded", "warning")]


def test_a_service_that_stops_right_after_a_look_does_not_trust_it(
    sampled: Recorded, engine: ServedEngine, clock: Clock
) -> None:
    sampled.train(3)
    sampled.ingest()
    prober = prober_of(sampled, engine, clock)
    prober.tick()
    prober.close()
    assert written(sampled.store) == []
    assert sampled.store.read("probe_budget", run=RUN)["scored"].to_pylist() == [2 * COST]


def test_the_probe_does_not_count_as_a_trainer(sampled: Recorded, engine: ServedEngine, clock: Clock) -> None:
    sampled.train(3)
    sampled.ingest()
    prober = prober_of(sampled, engine, clock)
    prober.tick()
    clock.seconds = 10.0
    prober.close()
    assert written(sampled.store) != []
    (row,) = sampled.store.read("alert_pulse", runs=[RUN]).to_pylist()
    assert [writer["name"] for writer in row["writers"]] == ["w"]
