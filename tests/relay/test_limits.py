"""What happens to the first one past a limit of the receiver: it is refused and that is said; all others stay as they were."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from logprobe.collectors.errors import ConfigurationError
from logprobe.collectors.versions import MarkFile
from logprobe.monitor.home import Home
from logprobe.monitor.relay import files, listening, tokens
from logprobe.monitor.relay.exchanges import Exchanges
from logprobe.monitor.relay.files import RelayFiles
from logprobe.monitor.relay.listening import NODES, Observations
from logprobe.monitor.relay.tokens import Writers


def test_a_writer_too_many_is_refused_and_the_tokens_of_all_others_still_count(tmp_path: Path) -> None:
    place, now = RelayFiles.of(Home(tmp_path).create()).create(), datetime.now(UTC)
    writers, token = Writers({}).grant("first", ["team-*"], now, overlap=timedelta(hours=1))
    tokens.save(place.tokens, writers)
    size = place.tokens.stat().st_size
    number = 2 * (files.MOST_BYTES // size)
    many = {f"writer-{each:05}": replace(writers.by_name["first"], name=f"writer-{each:05}") for each in range(number)}
    with pytest.raises(ConfigurationError, match="revoke some"):
        tokens.save(place.tokens, Writers({**writers.by_name, **many}))
    found = tokens.load(place.tokens).find(token, now)
    assert found is not None
    assert found.name == "first"


def test_marks_beyond_the_limit_of_a_run_are_refused_and_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = Home(tmp_path).create()
    lines = [json.dumps({"version": str(number), "applied_at": time.time()}) for number in range(3)]
    monkeypatch.setattr("logprobe.monitor.relay.exchanges._MOST_BYTES", len(lines[0]) + len(lines[1]) + 4)
    exchanges = Exchanges(home)
    answered, refused = exchanges.answer("run", lines[:2], 0)
    assert (len(answered["marks"]), refused) == (2, [])
    _, (words,) = exchanges.answer("run", lines[2:], answered["cursor"])
    assert words.startswith("1 weight marks of 'run'")
    assert exchanges.answer("run", lines[:2], 0)[1] == []  # what is there is no news
    assert MarkFile(home.path, "run").path.read_text().splitlines() == lines[:2]


def test_of_more_nodes_than_fit_the_one_heard_first_goes() -> None:
    observations = Observations()
    for number in range(NODES + 1):
        observations.node("run", f"node-{number}", {})
    kept = {row["node"] for row in observations.take()["nodes"]}
    assert kept == {f"node-{number}" for number in range(1, NODES + 1)}


def test_refusals_of_kinds_that_fit_no_report_are_counted_together() -> None:
    observations = Observations()
    for number in range(listening._REFUSALS + 2):
        observations.refused(f"writer-{number}", "segment", "ipv4:10.0.0.1:5", "may not write this run")
    taken: dict[str, Any] = observations.take()
    *_, named, others = taken["refusals"]
    assert (len(taken["refusals"]), named["count"]) == (listening._REFUSALS + 1, 1)
    assert (others["who"], others["count"]) == ("others", 2)
    assert others["words"] == "more than 512 kinds in one report; the log names them"
    observations.give_back(taken)
    observations.refused("late", "segment", "ipv4:10.0.0.1:5", "may not write this run")
    again: dict[str, Any] = observations.take()
    assert sum(each["count"] for each in again["refusals"]) == listening._REFUSALS + 3
