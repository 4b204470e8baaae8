"""kill -9 of the sending process at any point: still exactly one message per transition."""

from __future__ import annotations

import multiprocessing
import signal
from dataclasses import replace
from pathlib import Path
from random import Random

import outbox_program
import pytest
from alert_notes import NOTE
from fake_slack import FakeSlack

from logprobe.alerts.notification import Notification
from logprobe.alerts.sending import outbox
from logprobe.monitor import queries
from logprobe.monitor.home import Home
from logprobe.monitor.store.store import Store

STATES = ("firing", "still_firing", "resolved")
# Where the process is killed: by itself, or by Slack when a call reaches that stage.
BY_ITSELF = ("before begin", "after begin", "before sent", "after sent")
BY_SLACK = (
    ("chat.postMessage", "arrived"),
    ("chat.postMessage", "accepted"),
    ("chat.postMessage", "answered"),
    ("chat.update", "arrived"),
    ("chat.update", "answered"),
)


def transitions() -> list[Notification]:
    return [
        replace(NOTE, key=f"e{episode}/{state}", episode=f"e{episode}", state=state)
        for state in STATES
        for episode in range(3)
    ]


def test_each_transition_is_one_message_wherever_the_sender_is_killed(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(outbox_program.__file__).parent))  # for the forkserver's imports
    notes = transitions()
    with Store.open(Home(home)) as store, store.transaction() as cursor:
        for note in notes:
            outbox.enqueue(store, cursor, note)
    points = [*BY_ITSELF, *BY_SLACK]
    Random(20260501).shuffle(points)
    with FakeSlack(interval=0.0) as slack:
        killed = sum(run(home, slack, point) == -signal.SIGKILL for point in points)
        assert run(home, slack, "") == 0
    assert killed >= len(points) - 2  # nothing may be left to kill at when the last ones have their turn
    assert {note.key: len(slack.by_key(note.key)) for note in notes} == {note.key: 1 for note in notes}
    with Store.open(Home(home)) as store:
        assert [state["sent"] for state in queries.outbox_channels(store).to_pylist()] == [len(notes)]
    firsts = [message for message in slack.messages if "thread_ts" not in message]
    assert len(firsts) == 3
    assert all("Resolved" in str(message["blocks"]) and message["edited"] for message in firsts)
    assert not slack.violations


def run(home: Path, slack: FakeSlack, point: str | tuple[str, str]) -> int | None:
    """One life of the sender; → its exit code."""
    context = multiprocessing.get_context("forkserver")  # a real process each time, without a second of imports
    context.set_forkserver_preload(["outbox_program"])
    process = context.Process(
        target=outbox_program.main, args=(home, slack.api_url, point if isinstance(point, str) else "")
    )
    process.start()

    def kill(method: str, stage: str) -> None:
        if (method, stage) == point:
            process.kill()

    slack.on_call = kill
    process.join(timeout=120)
    return process.exitcode
