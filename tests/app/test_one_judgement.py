"""With a live service, everything that says how a run stands says the same of it at one time."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import numpy as np
import pytest
from fake_slack import CHANNEL, TOKEN, FakeSlack
from processes import eventually, logprobe, service
from processes import record as record_run
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from logprobe.app.dashboard.verdict import read_latest_diagnosis, verdict_of
from logprobe.app.runs import run_of
from logprobe.app.text.judgement import headline, line
from logprobe.collectors.recorder.recorder import Recorder
from logprobe.monitor import queries
from logprobe.monitor.home import Home
from logprobe.monitor.judging.judged import SECONDS, STEPS
from logprobe.monitor.reader import connect

RUN = "half-broken"
SHAPE = (8, 32)


def record(recorder: Recorder, steps: range) -> None:
    """Steps half of whose rollout log-probs are NaN."""
    for step in steps:
        rng = np.random.default_rng(step)
        trainer = -rng.exponential(1.0, SHAPE).astype(np.float32)
        rollout = np.where(rng.random(SHAPE) < 0.5, np.nan, trainer + rng.normal(0, 0.01, SHAPE)).astype(np.float32)
        recorder.training(
            step=step,
            sample_ids=[f"s{step}-{row}" for row in range(SHAPE[0])],
            token_ids=rng.integers(0, 1000, SHAPE),
            rollout_logprobs=rollout,
            trainer_logprobs=trainer,
            mask=np.ones(SHAPE, bool),
        )
    assert recorder.flush(120)


SETTINGS = """\
channels: {{team: {{kind: slack, channel: {channel}, token: $TEAM_TOKEN, api_url: "{url}"}}}}
alerts: [{{name: coverage-low, metric: coverage, below: 0.99, steps: 3, severity: critical}}]
"""


@pytest.fixture
def slack(home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeSlack]:
    """The home's channel."""
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TEAM_TOKEN", TOKEN)
    with FakeSlack(interval=0.0) as fake:
        home.mkdir()
        (home / "logprobe.yaml").write_text(SETTINGS.format(channel=CHANNEL, url=fake.api_url))
        yield fake


@pytest.fixture
def live(home: Path, slack: FakeSlack) -> Iterator[tuple[Path, int]]:
    """A home whose service runs, and the port of its `/metrics`; the run goes on."""
    assert not slack.messages
    with Recorder(home, RUN) as recorder:
        record(recorder, range(12))
        with service(home):
            info = Home(home).service_info()
            assert info is not None
            yield home, info.health_port


def of_metrics(port: int, family: str) -> dict[str, float]:
    with urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as answer:
        families = {each.name: each for each in text_string_to_metric_families(answer.read().decode())}
    samples = families[family].samples
    return {str(sample.labels.get(family, sample.labels.get("severity"))): sample.value for sample in samples}


def of_messages(slack: FakeSlack) -> set[str]:
    """What Slack's newest message says of the run as it stands."""
    return {word for message in slack.messages[-1:] for word in re.findall(r"Run now\W+n?(\w+)", json.dumps(message))}


def late_of(port: int) -> list[str]:
    with urlopen(f"http://127.0.0.1:{port}/healthz", timeout=60) as answer:
        late: list[str] = json.load(answer)["judged"]["late"]
        return late


def said(home: Path, port: int) -> dict[str, Any] | None:
    """The severity by place, and what goes with it; None: nothing is known yet, or it became another meanwhile."""
    with connect(home) as reader:
        if RUN not in queries.app_runs(reader)["run"].to_pylist():
            return None
        judgement, found = run_of(reader, RUN, datetime.now(UTC)).judgement, read_latest_diagnosis(reader, RUN)
    if "coverage-low" not in [alert.rule for alert in judgement.alerts]:
        return None
    (listed,) = json.loads(logprobe("runs", "--json", "--home", home).stdout)
    severity = judgement.severity
    status = json.loads(logprobe("show", RUN, "--json", "--home", home, code=2).stdout)
    states = of_metrics(port, "logprobe_severity")
    return {
        "banner": (severity, verdict_of(judgement, found, range(1)).word),
        "runs": (listed["severity"], listed["verdict"]),
        "show": (status["judgement"]["severity"], status["judgement"]["words"]),
        "its own": (status["verdict"], status["correction"]["advice"]),
        "stored": (status["judgement"]["verdict"], status["judgement"]["advice"]),
        "healthz": [sentence for sentence in late_of(port) if sentence.startswith(f"{RUN}:")],
        "late": [f"{RUN}: {status['judged']['sentence']}"] if status["judged"]["sentence"] else [],
        "metrics": next(name for name, value in states.items() if value),
        "line": line(judgement),
        "word": headline(judgement).word,
        "judged": [judgement.step, status["judgement"]["step"]],
        "alerts": [listed["alerts"], [each["rule"] for each in status["judgement"]["alerts"]]],
    }


def test_all_places_say_the_same_of_a_run_at_one_time(live: tuple[Path, int], slack: FakeSlack) -> None:
    home, port = live

    def settled() -> dict[str, Any] | None:
        """What is said, once nothing changed while it was read and the alerts fire."""
        before, after = said(home, port), said(home, port)
        return after if before == after else None

    found = eventually(settled, "the run is diagnosed and its alerts fire", seconds=300)
    assert found["banner"] == ("critical", found["word"])
    assert found["runs"] == ("critical", found["word"])
    assert found["show"] == ("critical", found["line"])
    assert found["its own"] == found["stored"]
    assert found["healthz"] == found["late"] == []
    eventually(lambda: slack.messages, "a message is sent")
    assert of_messages(slack) == {"critical"}
    assert found["metrics"] == "critical"
    assert len(set(found["judged"])) == 1
    assert found["alerts"][0] == found["alerts"][1]
    shown = logprobe("show", RUN, "--home", home, code=2).stdout
    assert f"{RUN}: {found['line']}" in " ".join(shown.split())


PROGRAM = Path(__file__).parent.parent / "support" / "pacing_program.py"
LIVE, PACED_STEPS = "armed", 60


def test_an_armed_live_run_is_judged_in_time_or_it_is_said_that_it_is_not(home: Path, tmp_path: Path) -> None:
    """Beside an ended run and busy loops; how fast it is judged is nothing that a test can promise."""
    record_run(home, "ended", steps=range(30))
    (home / "logprobe.yaml").write_text("correction: {mode: armed}\n")
    told = tmp_path / "told"
    with ExitStack() as stack:
        stack.enter_context(service(home))
        for _ in range(2):
            busy = subprocess.Popen(["nice", "-n", "10", sys.executable, "-c", "while True: pass"])
            stack.callback(busy.wait)
            stack.callback(busy.kill)
        with told.open("w") as out:
            trainer = subprocess.Popen([sys.executable, PROGRAM, home, LIVE, str(PACED_STEPS), "0.05"], stdout=out)
        stack.callback(trainer.wait)
        stack.callback(trainer.kill)
        eventually(lambda: LIVE in logprobe("runs", "--home", home).stdout and judged_of(home), "a step is computed")
        looks = 0
        while trainer.poll() is None or looks == 0:
            check_what_is_said(home, told)
            looks += 1
        eventually(lambda: judged_of(home)["judged_step"] == PACED_STEPS - 1, "all of it is judged")
        assert judged_of(home)["sentence"] is None


def judged_of(home: Path) -> dict[str, Any]:
    judged: dict[str, Any] = json.loads(logprobe("show", LIVE, "--json", "--home", home).stdout)["judged"]
    return judged


def check_what_is_said(home: Path, told: Path) -> None:
    """More than ten steps that have been in the spool for more than two seconds are judged, or missed aloud."""
    before = time.time()
    recorded = [line.split() for line in told.read_text().splitlines(keepends=True) if line.endswith("\n")]
    old = [int(step) for step, at in recorded if before - float(at) > SECONDS]
    judged = judged_of(home)
    behind = [step for step in old if judged["judged_step"] is None or step > judged["judged_step"]]
    if len(behind) > STEPS:
        assert judged["sentence"] is not None, (judged, behind)
        assert judged["sentence"].startswith(("not judged since step", "not judged yet"))
        assert not judged["in_time"]
