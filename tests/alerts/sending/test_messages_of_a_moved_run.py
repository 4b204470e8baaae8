"""Alerts of a run that moves to another service: each message is sent once, by one of the two, whatever is under way when it leaves."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from alert_homes import K3, put
from alert_notes import NOTE
from fake_slack import FakeSlack
from sending import Bench, bot

from logprobe.alerts.sending import outbox
from logprobe.alerts.sending.channels.calls import Calls
from logprobe.alerts.sending.channels.slack_webhook import SlackWebhook
from logprobe.alerts.sending.credentials import Secret
from logprobe.monitor.fleet import handover
from logprobe.monitor.fleet.moved import Moved
from logprobe.monitor.home import Home
from logprobe.monitor.store.store import Store

RUN, OTHER, MOVE = NOTE.run, "stays", "m1"


@pytest.fixture
def stores(tmp_path: Path) -> Iterator[tuple[Store, Store]]:
    """Two homes; the first has two runs."""
    with Store.open(Home(tmp_path / "a").create()) as a, Store.open(Home(tmp_path / "b").create()) as b:
        for run in (RUN, OTHER):
            put(a, run, {step: {K3: 1e-3} for step in range(3)})
        yield a, b


def hook(slack: FakeSlack) -> SlackWebhook:
    return SlackWebhook("hook", url=Secret(slack.hook_url), calls=Calls(60, threading.Event()))


def move(a: Store, b: Store) -> None:
    asked = {"run": RUN, "move": MOVE, "to": "b", "home": str(b.home.path), "author": "ada"}
    packed = handover._pack(a, asked, datetime.now(UTC))
    handover._unpack(b, {**asked, "package": packed["package"]}, datetime.now(UTC))
    handover._settle(a, {**asked, "sha256": packed["sha256"]}, datetime.now(UTC))


def test_a_message_under_way_when_the_run_leaves_is_not_sent_again(
    stores: tuple[Store, Store], slack: FakeSlack
) -> None:
    a, b = stores
    old, new = (
        Bench(store, bot(slack), hook(slack)) for store in stores
    )  # of the second nobody can ask what has arrived
    old.enqueue(replace(NOTE, key="one"))
    moving, soon = threading.Thread(target=move, args=(a, b)), threading.Event()

    def leaves(method: str, stage: str) -> None:
        if (method, stage) == ("webhook", "accepted") and moving.ident is None:
            moving.start()
            while a.moved.find(RUN) is None:  # from now on nothing of it is stored here
                soon.wait(0.01)
            soon.wait(1.0)

    slack.on_call = leaves
    old.run()
    moving.join(120)
    assert not moving.is_alive()
    new.run(hours=0.1)
    assert (slack.calls.count("webhook"), len(slack.by_key("one"))) == (1, 1)
    assert sorted(state["sent"] for state in outbox.channel_states(b)) == [1, 1]
    new.enqueue(replace(NOTE, key="two", state="resolved"))
    new.run(hours=0.1)
    assert [len(slack.by_key(key)) for key in ("one", "two")] == [1, 1]
    assert slack.by_key("two")[0]["thread_ts"] == slack.by_key("one")[0]["ts"], (
        "in the thread that the old service began"
    )


def test_a_message_that_was_about_to_be_sent_leaves_with_the_run(
    stores: tuple[Store, Store], slack: FakeSlack, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = stores
    old, new = Bench(a, bot(slack)), Bench(b, bot(slack))
    old.enqueue(replace(NOTE, key="one"), replace(NOTE, key="other", run=OTHER, episode="other"))
    due = outbox.due

    def looked(*arguments: object) -> object:
        found = due(*arguments)
        if a.moved.find(RUN) is None:
            move(a, b)  # after the sender has read what is due
        return found

    monkeypatch.setattr(outbox, "due", looked)
    old.run(hours=0.1)
    assert [len(slack.by_key(key)) for key in ("one", "other")] == [0, 1]
    new.run(hours=0.1)
    assert [len(slack.by_key(key)) for key in ("one", "other")] == [1, 1]


def test_a_move_that_was_interrupted_holds_up_no_other_run(stores: tuple[Store, Store], slack: FakeSlack) -> None:
    a, _ = stores
    old = Bench(a, bot(slack))
    old.enqueue(replace(NOTE, key="one"), replace(NOTE, key="other", run=OTHER, episode="other"))
    a.moved.write(Moved(RUN, MOVE, "b", None, "now"))
    old.run(hours=0.1)
    assert [len(slack.by_key(key)) for key in ("one", "other")] == [0, 1]
    a.moved.remove(RUN)
    old.run(hours=0.1)
    assert len(slack.by_key("one")) == 1
