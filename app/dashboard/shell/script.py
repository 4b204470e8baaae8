"""The script that Streamlit runs per session: the pages, the bar with the run, and the heartbeat that redraws a page.

Only the open page is imported, because the imports of the others would delay the first chart.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from importlib import import_module
from typing import Final

import streamlit as st

from logprobe.app.dashboard import acting, browser, data, ui
from logprobe.app.dashboard.data import Look
from logprobe.app.dashboard.page_table import BY_PATH, PAGES, Page
from logprobe.app.dashboard.theme import colors_of
from logprobe.app.runs import Run
from logprobe.app.text.html import Markup, element
from logprobe.app.text.judgement import SIGNS, word
from logprobe.app.text.numbers import duration
from logprobe.app.text.runs import worst_first
from logprobe.monitor.liveness import State

_SECONDS: Final = {
    State.LIVE: 2.0,
    State.IDLE: 5.0,
    State.NO_DATA: 2.0,
    State.STALE: 10.0,
    State.ENDED: 10.0,
    State.FAILED: 10.0,
}
_RETRY_SECONDS: Final = 2.0
_COLORS: Final = {"critical": "#d55e00", "warning": "#e69f00", "unknown": "#8d939a", "ok": "#009e73"}
_SEEN: Final = "news that is shown"
_SHOWN: Final = "run that is shown"
_AWAITED: Final = "run that a link names and that is not here yet"
_SNIPPET: Final = """from logprobe.collectors import Recorder

with Recorder("{home}", "my-run") as recorder:
    for step, batch in enumerate(batches):
        …
        recorder.training(
            step=step,
            sample_ids=batch.sample_ids,
            token_ids=batch.token_ids,                # [batch, time]
            rollout_logprobs=batch.rollout_logprobs,  # as the engine reported them
            trainer_logprobs=batch.trainer_logprobs,  # recomputed before the update
            mask=batch.mask,
        )"""


def main() -> None:
    """Draw the page of the URL, if this session may view it."""
    st.html(f"<style>{colors_of(ui.theme())}{browser.stylesheet()}</style>")
    if not acting.admitted():
        st.set_page_config(page_title="logprobe", page_icon=browser.icon(), layout="wide")
        return
    places = {
        page.path: st.Page(partial(_draw, page), title=page.title, url_path=page.path, default=not page.path)
        for page in PAGES
    }
    asked = st.query_params.get("run")
    opened = st.navigation(list(places.values()), position="top")
    page = BY_PATH[opened.url_path]
    look = data.look()
    _redirected(places, page, look)
    run = _run(look, page, asked)
    titled = [
        SIGNS[run.judgement.severity][0] if run else "",
        " · ".join(filter(None, [run.name if run else "", page.title, "logprobe"])),
    ]
    icon = browser.icon(_COLORS[run.judgement.severity] if run else "")
    st.set_page_config(page_title=" ".join(filter(None, titled)), page_icon=icon, layout="wide")
    if st.session_state.get("page that is open") != page.path:
        st.session_state["page that is open"] = page.path
        acting.silent()
    opened.run()
    acting.signed_in()


def _redirected(places: dict[str, object], page: Page, look: Look) -> None:
    """Open the page named in the query of a link, as messages have it.

    Without page and run, open the list of runs if there are several.
    """
    query = {name: value for name, value in st.query_params.to_dict().items() if name != "page"}
    if (wanted := st.session_state.pop(ui.GO, None)) is not None:
        path, state = wanted
        st.session_state.update(state)
        st.switch_page(places[path])  # widgets bring what they hold into the address themselves
    named = st.query_params.get("page")
    if named is not None:
        st.switch_page(places.get(named, places[""]), query_params=query)
    first = not st.session_state.setdefault("first page was drawn", False)
    st.session_state["first page was drawn"] = True
    if first and not page.path and not query and len(look.runs or ()) > 1:
        st.switch_page(places["runs"])


def _run(look: Look, page: Page, asked: str | None) -> Run | None:
    """Draw the bar with the state of the run, and return the open run."""
    runs = look.runs or {}
    chosen: str | None = None
    with st.container(horizontal=True, vertical_alignment="center", gap="small"):
        if runs:
            if asked is not None and asked not in runs:
                st.query_params.pop("run", None)
                st.session_state[_AWAITED] = asked
            elif (awaited := st.session_state.get(_AWAITED)) in runs:
                del st.session_state[_AWAITED]
                st.session_state["run"] = awaited
            names = list(runs)
            if not page.of_all and st.session_state.get("run") not in runs and asked not in runs:
                worst = worst_first(runs.values())[0].name
                before = st.session_state.get(_SHOWN)  # Escape clears the selector: that chooses no other run
                st.session_state["run"] = before if before in runs else worst if asked is None else names[0]
            chosen = st.selectbox(
                "run",
                names,
                index=None,
                key="run",
                bind="query-params",
                persist_state="session",
                label_visibility="collapsed",
                width=330,
                placeholder="choose a run",
                on_change=_chosen,
            )
        run = runs.get(chosen or "")
        st.session_state[_SHOWN] = chosen or st.session_state.get(_SHOWN)
        # This run shows the news in any case; begun again, it would not hear which button was pressed.
        st.session_state.pop(_SEEN, None)
        with st.container(key="bar"):
            st.fragment(partial(_heart, chosen))()
    with st.container():
        if runs and (awaited := st.session_state.get(_AWAITED)) is not None:
            ui.write(f"There is no run called {awaited} here yet; showing {chosen} until there is.", "info")
    return run


def _chosen() -> None:
    """Stop waiting for another run after the user chose one."""
    st.session_state.pop(_AWAITED, None)


def _heart(name: str | None) -> None:
    """Draw the state of the run as a fragment, and redraw the whole page after a change."""
    look = data.look()
    run = (look.runs or {}).get(name or "")
    browser.heart(_RETRY_SECONDS if run is None or look.away_since else _SECONDS[run.liveness.state])
    st.html(_facts(look, run))
    now = (name, _news(look, run))
    seen = st.session_state.setdefault(_SEEN, now)
    st.session_state[_SEEN] = now
    if seen[0] == name and seen != now:
        st.rerun()


def _news(look: Look, run: Run | None) -> tuple[object, ...]:
    """Return a value that changes with the content of the page."""
    home = (look.away_since, look.problem, look.runs is None)
    if run is None:
        return (*home, tuple(map(data.version_of, (look.runs or {}).values())))
    return (*home, data.version_of(run), run.judgement, run.judgement.overdue, run.liveness.state, len(look.runs or ()))


def _facts(look: Look, run: Run | None) -> Markup:
    now = datetime.now(UTC)
    parts = []
    if look.away_since is not None:
        age = duration((now - look.away_since).total_seconds())
        words = f"The monitor service is not responding for {age}; the last values are shown, and it is asked again."
        parts += [_badge("away", "service away"), Markup(element("span", words, role="alert"))]
    elif run is not None:
        parts.append(_badge(run.liveness.state.value, run.liveness.state.value.replace("_", " "), run.liveness.reason))
    if look.problem is not None:
        parts.append(element("span", look.problem, role="alert"))
    if run is not None:
        parts.append(_badge(run.judgement.severity, f"{SIGNS[run.judgement.severity][0]} {word(run.judgement)}"))
        parts += [] if run.last_step is None else [_fact("step", f"{run.last_step:,}")]
        if run.last_record is not None:
            parts.append(_fact("", duration((now - run.last_record).total_seconds()), " ago"))
    lag = ingest_lag(look)
    if lag is not None and look.away_since is None:
        parts.append(_fact("ingest lag", lag))
    return element("div", element("div", *parts, class_="lp-bar"), class_="lp")


def _fact(name: str, value: str, after: str = "") -> Markup:
    return element("span", f"{name} " if name else "", element("b", value), after)


def _badge(kind: str, words: str, title: str = "") -> Markup:
    return element("span", words, class_=f"lp-badge lp-is-{kind} lp-tone-{kind}", title=title)


def ingest_lag(look: Look) -> str | None:
    """Return the delay until records are in the store, as the service reports it, or None if unknown."""
    progress = ((look.status.get("jobs") or {}).get("ingest") or {}).get("progress") or {}
    backlog = look.status.get("backlog") or {}
    if "lag_seconds" not in progress and "oldest_seconds" not in backlog:
        return None
    seconds = max(progress.get("lag_seconds") or 0.0, backlog.get("oldest_seconds") or 0.0)  # null: nothing waits
    if seconds < 0.05:  # noqa: PLR2004 - seconds that nobody notices
        return "none"
    return f"{seconds:.1f} s" if seconds < 10 else duration(seconds)  # noqa: PLR2004 - digits


def _draw(page: Page) -> None:
    look = data.look()
    run = (look.runs or {}).get(st.session_state.get("run") or "")
    if page.acts:
        with ui.guarded("field for the token"):
            acting.token_form()
    acting.said()
    draw: Callable[..., None] = import_module(f"logprobe.app.dashboard.pages.{page.module}").draw
    if page.of_home and look.runs:
        draw(look, run)
    elif look.runs is None:
        _no_service()
    elif not look.runs:
        _how_to_begin()
    elif run is None or not run.steps:
        st.caption(
            "Recording has started, but no step is complete yet. Values appear once the trainer has recorded a step."
        )
    else:
        with ui.guarded("page"):
            draw(run)


def _how_to_begin() -> None:
    st.markdown("#### No runs yet")
    st.markdown(
        "The service watches this data directory. Record from your training loop; the run appears within seconds:"
    )
    st.code(_SNIPPET.format(home=str(data.home())), language="python")
    st.markdown(
        "Nothing to record yet? `logprobe demo` trains a small run. `logprobe doctor` shows what can be measured here."
    )


def _no_service() -> None:
    st.markdown("#### The monitor service is not responding")
    st.markdown("This page keeps retrying. If the service is not running, start it with")
    st.code(f"logprobe up --home {data.home()}", language="bash")


main()
