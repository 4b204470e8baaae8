"""The outbox against a real store."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import timedelta
from random import Random

import pytest
from alert_notes import NOTE
from hypothesis import given
from hypothesis import strategies as st
from processes import eventually
from sending import ALL, Bench

from logprobe.alerts.notification import Notification
from logprobe.alerts.sending.channels.channel import Outgoing, Receipt
from logprobe.alerts.sending.channels.settings import Route
from logprobe.alerts.sending.delivery import Dispatcher, pause
from logprobe.collectors.errors import ChannelError
from logprobe.monitor.store.store import Store


class Recording:
    """A channel that keeps what it gets, and fails as it is told."""

    kind, settle, pace = "recording", timedelta(seconds=15), 0.0

    def __init__(self, name: str, *failures: str | None) -> None:
        self.name = name
        self.got: list[Outgoing] = []
        self._failures = list(failures)

    def send(self, outgoing: Outgoing) -> Receipt:
        failure = self._failures.pop(0) if self._failures else None
        if failure is not None:
            raise ChannelError(failure, "as told")
        self.got.append(outgoing)
        return {"id": outgoing.notification.key}

    def check(self) -> list[str]:
        return []

    def keys(self) -> list[str]:
        return [outgoing.notification.key for outgoing in self.got]


def transition(episode: str, state: str, severity: str = "critical") -> Notification:
    return replace(NOTE, key=f"{episode}/{state}", episode=episode, state=state, severity=severity)


def test_transitions_of_an_episode_keep_their_order(store: Store) -> None:
    channel = Recording("a", "unreachable")
    bench = Bench(store, channel)
    bench.enqueue(transition("e1", "firing"), transition("e1", "resolved"), transition("e2", "firing"))
    bench.run()
    bench.finish()
    assert channel.keys().index("e1/firing") < channel.keys().index("e1/resolved")
    threads = {outgoing.notification.key: outgoing.thread for outgoing in channel.got}
    assert threads == {"e1/firing": None, "e1/resolved": {"id": "e1/firing"}, "e2/firing": None}


def test_a_message_that_fails_for_itself_lets_others_pass(store: Store) -> None:
    channel = Recording("a", "uncertain")
    bench = Bench(store, channel)
    bench.enqueue(transition("e1", "firing"), transition("e2", "firing"))
    bench.run()
    bench.finish()
    assert channel.keys() == ["e2/firing", "e1/firing"]
    assert [outgoing.uncertain_since is not None for outgoing in channel.got] == [False, True]


@pytest.mark.parametrize("reason", ["unreachable", "uncertain", "busy", "setup"])
def test_what_may_succeed_later_is_tried_until_it_does(store: Store, reason: str) -> None:
    channel = Recording("a", *[reason] * 5)
    bench = Bench(store, channel)
    bench.enqueue(NOTE)
    bench.run(hours=0.3)
    assert bench.states() == {"a": (1, 0, 0)}


def test_a_message_that_fails_holds_up_the_end_of_its_incident_and_no_other_alert(store: Store) -> None:
    class Picky(Recording):
        refused = 0

        def send(self, outgoing: Outgoing) -> Receipt:
            if outgoing.notification.key == "e1/firing" and self.refused < 3:
                self.refused += 1
                raise ChannelError("uncertain", "of its content")
            return super().send(outgoing)

    channel = Picky("a")
    bench = Bench(store, channel)
    waiting, ended = transition("e1", "firing"), transition("run#1", "closed")
    rest = [transition("e1", "resolved"), transition("e2", "firing"), ended, transition("e2", "changed")]
    bench.enqueue(*(replace(note, incident="run#1") for note in (waiting, *rest)))
    bench.run()
    bench.run()
    assert channel.keys() == ["e2/firing", "e2/changed"]
    bench.finish()
    assert channel.keys() == ["e2/firing", "e2/changed", "e1/firing", "e1/resolved", "run#1/closed"]
    assert [outgoing.overtaken for outgoing in channel.got] == [False, False, True, True, False]


@contextmanager
def dispatching(bench: Bench, routes: list[Route]) -> Iterator[Dispatcher]:
    """A dispatcher of some channels; it is closed at the end."""
    dispatcher = Dispatcher(
        bench.store, lambda: routes, clock=lambda: bench.now, random=Random(1), stopping=bench.stopping
    )
    try:
        yield dispatcher
    finally:
        dispatcher.close()


def test_channels_get_the_severities_they_want_and_nothing_piles_up_for_one_to_come(store: Store) -> None:
    loud, quiet, late = Recording("loud"), Recording("quiet"), Recording("late")
    routes = [Route(loud, frozenset({"critical"})), Route(quiet, frozenset({"info", "critical"}))]
    bench = Bench(store)
    bench.enqueue(transition("e1", "firing"), transition("e2", "firing", "info"), transition("e3", "firing", "warning"))
    with dispatching(bench, routes) as dispatcher:
        dispatcher.run_once()
    assert (loud.keys(), quiet.keys()) == (["e1/firing"], ["e1/firing", "e2/firing"])
    bench.enqueue(transition("e4", "firing"))
    with dispatching(bench, []) as dispatcher:
        assert dispatcher.run_once()["notifications"] == 1
    Bench(store, late).run()
    assert late.keys() == []


def test_of_its_own_failure_a_channel_hears_nothing_but_others_do(store: Store) -> None:
    broken, sound = Recording("broken", "refused"), Recording("sound")
    bench = Bench(store, broken, sound)
    bench.enqueue(transition("e1", "firing"))
    bench.run()
    bench.run()
    assert broken.keys() == []
    assert sound.keys() == ["e1/firing", "undelivered/broken/e1/firing"]
    assert "broken did not accept this message" in sound.got[1].notification.summary


def test_a_lost_notice_of_a_lost_message_is_the_end_of_it(store: Store) -> None:
    channels = [Recording(name, *["refused"] * 9) for name in ("a", "b")]
    bench = Bench(store, *channels)
    bench.enqueue(transition("e1", "firing"))
    bench.run(hours=0.1)
    assert bench.states() == {"a": (0, 0, 2), "b": (0, 0, 2)}


def test_a_channel_that_hangs_delays_no_other(store: Store) -> None:
    reached, release = threading.Event(), threading.Event()

    class Hanging(Recording):
        def send(self, outgoing: Outgoing) -> Receipt:
            reached.set()
            assert release.wait(200)
            return super().send(outgoing)

    slow, quick = Hanging("slow"), Recording("quick")
    bench = Bench(store, slow, quick)
    bench.enqueue(transition("e1", "firing"))
    routes = [Route(channel, ALL) for channel in (slow, quick)]
    with dispatching(bench, routes) as dispatcher:
        dispatcher.run_once()
        assert reached.wait(60)
        eventually(lambda: quick.keys() == ["e1/firing"], "the other one is served while it still hangs")
        bench.enqueue(transition("e2", "firing"))  # and transitions go on being written
        eventually(
            lambda: dispatcher.run_once() and quick.keys() == ["e1/firing", "e2/firing"], "and goes on being served"
        )
        release.set()
    assert slow.keys()[0] == "e1/firing"


@given(st.integers(1, 100), st.sampled_from(["uncertain", "unreachable", "busy", "setup"]), st.integers(0, 2**32))
def test_pauses_grow_and_stay_bounded(attempts: int, reason: str, seed: int) -> None:
    wait = pause(attempts, reason, None, Random(seed)).total_seconds()
    most = 60 if reason == "setup" else min(300, 2 * 2 ** (attempts - 1))
    assert most / 2 <= wait <= most
    assert 17 <= pause(attempts, reason, 17.0, Random(seed)).total_seconds() <= 18


def test_a_message_that_kills_its_sender_is_tried_less_and_less_and_given_up(store: Store) -> None:
    class Deadly(Recording):
        def send(self, outgoing: Outgoing) -> Receipt:
            raise ZeroDivisionError  # stands for a process that ends

    bench = Bench(store, Deadly("a"))
    bench.enqueue(NOTE)
    gaps = []
    for _ in range(7):
        with suppress(ZeroDivisionError):
            bench.run()
        (next_at,) = store.query("SELECT next_at FROM deliveries")["next_at"].to_pylist()
        gaps.append((next_at - bench.now).total_seconds())
        bench.now = next_at
    assert gaps[0] == gaps[1] == 15  # as long as the channel takes to know
    assert gaps[6] >= 32
    bench.now += timedelta(hours=25)
    bench.run()
    assert bench.states() == {"a": (0, 0, 1)}


@pytest.mark.parametrize("restarted", [False, True])
def test_a_clock_that_is_set_back_makes_no_channel_rest_for_longer(store: Store, restarted: bool) -> None:
    channel = Recording("team", "unreachable")
    bench = Bench(store, channel)
    bench.enqueue(NOTE)
    bench.run(minutes_between=0.001)
    assert bench.states() == {"team": (0, 1, 0)}
    bench.set_clock(-timedelta(days=400))
    until = bench.dispatcher.senders()["team"].state()["waits_until"]
    assert until is not None
    assert timedelta(0) < until - bench.now <= timedelta(seconds=2)
    if restarted:
        now = bench.now
        bench = Bench(store, channel)
        bench.now = now
    bench.now += timedelta(seconds=3)
    bench.run()
    assert bench.states() == {"team": (1, 0, 0)}


def test_a_clock_that_is_set_ahead_ends_no_rest(store: Store) -> None:
    """A channel asked for an hour; what it refused is not tried before."""
    channel = Busy("team")
    bench = Bench(store, channel)
    bench.enqueue(NOTE)
    bench.run(minutes_between=0.001)
    bench.set_clock(timedelta(hours=2))
    bench.run(hours=0.9)
    assert channel.asked == 1
    bench.run(hours=0.2)
    assert bench.states() == {"team": (1, 0, 0)}


class Busy(Recording):
    """A channel that asks once for an hour's rest."""

    asked = 0

    def send(self, outgoing: Outgoing) -> Receipt:
        self.asked += 1
        if self.asked == 1:
            raise ChannelError("busy", "too many", retry_after=3600.0)
        return super().send(outgoing)
