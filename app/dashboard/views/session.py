"""What a page needs of its session: the shared feed, the chosen run, the theme, and how often to look."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any, Final, TypeGuard, TypeVar

import streamlit as st

from logprobe.app.dashboard.browser import address
from logprobe.app.dashboard.data.feed import Feed, Snapshot
from logprobe.app.dashboard.data.series import CatalogSeries, RunSeries
from logprobe.app.dashboard.theme import Theme, theme_for
from logprobe.app.runs import Run
from logprobe.collectors.errors import ConfigurationError, LogprobeError, ServiceUnavailableError
from logprobe.monitor.liveness import State
from logprobe.monitor.reader import connect

T = TypeVar("T")

_LOGGER: Final = logging.getLogger("logprobe.app")
_SECONDS: Final = {
    State.LIVE: 2.0,
    State.IDLE: 5.0,
    State.NO_DATA: 2.0,
    State.STALE: 10.0,
    State.ENDED: 10.0,
    State.FAILED: 10.0,
}
_RETRY_SECONDS: Final = 2.0


def home() -> Path:
    """The home this app was started for. Raises `ConfigurationError` when it is unknown."""
    path = os.environ.get("LOGPROBE_HOME")
    if not path:
        raise ConfigurationError("no home: start the dashboard with `logprobe up --home DIR` or set LOGPROBE_HOME")
    return Path(path)


@cache
def _feed(path: str) -> Feed:
    return Feed(lambda: connect(path))


def feed() -> Feed:
    """One feed for all sessions of this process."""
    return _feed(str(home()))


@cache
def _catalog(_home: str) -> CatalogSeries:
    return CatalogSeries(feed())


def catalog_of(run: str, revision: int) -> RunSeries | None:
    """Every metric of a run, as of `revision` or later; None: the service does not answer, and never did."""
    return kept(f"catalog {run}", lambda: _catalog(str(home())).of(run, revision))


def theme() -> Theme:
    """Light or dark, as the browser shows the page."""
    return theme_for(st.context.theme.type)


def asked(name: str) -> str | None:
    """What the address says of `name`; None: nothing."""
    return address.current().get(name)


def put(state: Mapping[str, Any]) -> None:
    """Puts what is looked at into the address, so that the link opens the same view; None or "" takes a name out."""
    address.put(state)


def current_snapshot() -> tuple[Snapshot, Run | None]:
    """A look at the chosen run, or at the newest when none is chosen or the chosen one does not exist."""
    snapshot = feed().snapshot(asked("run"))
    run = snapshot.run(asked("run"))
    if run is None and snapshot.runs:
        run = snapshot.runs[0]
        snapshot = feed().snapshot(run.name)
    return snapshot, run


def all_runs() -> tuple[Snapshot, Run | None]:
    """A look at the runs alone, and the chosen one among them; None: none is chosen."""
    snapshot = feed().snapshot(None)
    return snapshot, snapshot.run(asked("run"))


def kept(key: str, read: Callable[[], T]) -> T | None:
    """What `read` returns, or what it returned last in this session while the service does not answer. Raises what else
    it does."""
    with suppress(ServiceUnavailableError):  # the bar says so
        st.session_state[key] = read()
    value: T | None = st.session_state.get(key)
    return value


def made(place: str, version: Hashable, make: Callable[[], T]) -> T:
    """What `make` returned for this `version`, made again for another one."""
    remembered: tuple[Hashable, T] | None = st.session_state.get(place)
    if remembered is None or remembered[0] != version:
        remembered = st.session_state[place] = (version, make())
    return remembered[1]


def read_once(place: str, version: Hashable, read: Callable[[], T]) -> T | None:
    """As `made`; while the service does not answer, what was read last."""
    with suppress(ServiceUnavailableError):  # the bar says so
        return made(place, version, read)
    last: tuple[Hashable, T] | None = st.session_state.get(place)
    return None if last is None else last[1]


def is_new(wanted: Mapping[str, Any] | None, place: str) -> TypeGuard[Mapping[str, Any]]:
    """Whether something was confirmed on a panel that was not yet heard at `place`; it is from now on."""
    if not wanted or wanted.get("at") == st.session_state.get(place):
        return False
    st.session_state[place] = wanted.get("at")
    return True


@contextmanager
def guarded(panel: str) -> Iterator[None]:
    """The boundary of one panel: an unexpected error is logged, and one line here instead of a page that is gone."""
    try:
        yield
    except LogprobeError as error:
        st.error(str(error).partition("\n")[0])
    except Exception as error:
        _LOGGER.exception("%s could not be drawn", panel)
        st.error(
            f"The {panel} could not be drawn ({type(error).__name__}); the output of `logprobe up` has the details."
        )


def pace(snapshot: Snapshot, run: Run | None) -> float:
    """Seconds until the next look."""
    if snapshot.away_since is not None or run is None:
        return _RETRY_SECONDS
    return _SECONDS[run.liveness.state]
