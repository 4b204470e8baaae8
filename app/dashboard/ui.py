"""Building blocks of pages: text, facts, tables, the verdict and charts. All external content is inserted as text."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, TypeVar
from urllib.parse import quote, urlencode

import polars as pl
import streamlit as st

from logprobe.app.dashboard import browser, data, steps
from logprobe.app.dashboard.figures import Chart
from logprobe.app.dashboard.panels import Panel
from logprobe.app.dashboard.theme import Theme, theme_for
from logprobe.app.dashboard.verdict import LatestDiagnosis, Verdict
from logprobe.app.runs import Run
from logprobe.app.text import html
from logprobe.app.text.html import Markup, element
from logprobe.collectors.errors import LogprobeError, ServiceUnavailableError

T = TypeVar("T")

_LOGGER: Final = logging.getLogger("logprobe.app")
_LINK: Final = re.compile(r"(?<=:)(?=//)|(?<=www)(?=\.)", re.IGNORECASE)
_MARKS: Final = re.compile(r"([\\`*_{}\[\]()#+\-.!|~>$:<&])")
_UNREAD: Final = "Not read yet: the monitor service is not responding. The page tries again."


def theme() -> Theme:
    """Return the light or dark theme, following the browser."""
    return theme_for(st.context.theme.type)


@contextmanager
def guarded(part: str) -> Iterator[None]:
    """Guard one part of a page. An unexpected error in that part is logged and shown as one line."""
    try:
        yield
    except ServiceUnavailableError:  # the bar says how long
        st.caption(_UNREAD)
    except LogprobeError as error:
        st.error(unmarked(str(error).partition("\n")[0]))
    except Exception as error:
        _LOGGER.exception("%s could not be drawn", part)
        st.error(
            f"The {part} could not be drawn ({type(error).__name__}); the output of `logprobe up` has the details."
        )


# --- Words ---


def unmarked(words: str) -> str:
    """Return escaped text for a label of Streamlit, which interprets labels as Markdown."""
    # An address becomes a link in spite of backslashes, but not with a word joiner in it, which nobody sees.
    return _MARKS.sub(r"\\\1", _LINK.sub("\u2060", words))


def write(words: str, tone: str = "") -> None:
    """Draw a paragraph. `tone`: severity or verdict that determines its colour."""
    more = {"role": "status", "class_": f"lp-text lp-tone-{tone}"} if tone else {"class_": "lp-text"}
    st.html(element("div", element("p", words, **more), class_="lp"))


def title(words: str, note: str = "") -> None:
    """Draw the title of a part, with `note` next to it in small print."""
    hint = [element("span", note, class_="lp-hint")] if note else []
    st.html(element("div", element("h2", words, *hint), class_="lp"))


def facts(items: Sequence[tuple[str, str]]) -> None:
    """Draw names and values, a pair per line."""
    st.html(element("div", html.pairs(items), class_="lp"))


def link(words: str, page: str = "", query: Mapping[str, str] | None = None, *, title: str = "") -> Markup:
    """Return a link to another view, relative to any page of the dashboard. `title`: its tooltip."""
    named = {**({"page": page} if page else {}), **(query or {})}
    href = f"./?{urlencode(named, quote_via=quote, safe=':')}"
    return element("a", words, href=href, target="_self", **({"title": title} if title else {}))


def links(shown: Sequence[Markup]) -> None:
    """Draw links in a line."""
    st.html(element("div", Markup(" · ".join(shown)), class_="lp"), width="content")


GO: Final = "where to go"


def go(page: str, **state: Any) -> None:
    """Open another page within the session. `state`: values of its widgets."""
    st.session_state[GO] = (page, state)
    st.rerun()


@dataclass(frozen=True)
class Line:
    """A line of a table. `tone`: severity or verdict that determines its colour."""

    cells: Sequence[str]
    tone: str = ""


def table(name: str, head: Sequence[str], lines: Sequence[Line], *, empty: str = "") -> None:
    """Draw a table. `empty`: meaning of a table without rows."""
    if not lines:
        st.html(element("div", element("p", empty, class_="lp-text lp-hint"), class_="lp"))
        return
    rows = html.table(name, head, [line.cells for line in lines], tones=[line.tone for line in lines])
    st.html(element("div", rows, class_="lp"))


def verdict(shown: Verdict) -> None:
    """Draw the banner."""
    head = [
        element("i", shown.icon, aria_hidden="true"),
        element("b", shown.word),
        shown.words,
        *([element("span", f" {shown.note}", class_="lp-hint")] if shown.note else []),
    ]
    parts = [element("p", *head, class_="lp-headline")]
    if shown.facts:
        inline = [element("div", element("dt", name), element("dd", value)) for name, value in shown.facts]
        parts.append(element("dl", *inline, class_="lp-inline"))
    parts += [html.pairs(shown.do)] if shown.do else []
    banner = element("div", *parts, class_=f"lp-verdict lp-tone-{shown.tone}", role="status", aria_label="verdict")
    st.html(element("div", banner, class_="lp"))
    copied = [line[2] for line in shown.do if len(line) > 2 and line[2]]  # noqa: PLR2004 - name, value, what to copy
    for words in copied:
        st.code(words, language=None, width="content")


# --- Choosing ---


def choice(label: str, options: Sequence[str], key: str, **more: Any) -> str:
    """Offer a choice of a few values, by default the first. The URL stores the choice, which persists across pages."""
    if st.session_state.get(key) not in {None, *options}:
        st.session_state[key] = options[0]
    more = {"label_visibility": "collapsed", **more}
    chosen = st.segmented_control(
        label,
        list(options),
        default=options[0],
        required=True,
        key=key,
        bind="query-params",
        persist_state="session",
        **more,
    )
    return str(chosen if chosen in options else options[0])


def selection(label: str, options: Sequence[str], usual: str, width: int) -> str:
    """Offer a choice of many values under the key `label`. The URL stores the choice, which persists across pages."""
    if st.session_state.get(label) not in {None, *options}:
        st.session_state[label] = usual
    chosen = st.selectbox(
        label,
        options,
        options.index(usual),
        key=label,
        bind="query-params",
        persist_state="session",
        width=width,
        label_visibility="collapsed",
    )
    return chosen or usual


def pick(label: str, names: Sequence[str], key: str) -> int:
    """Return the only row of a table, or else the selected one."""
    if len(names) == 1:
        return 0
    shown = [f"{at + 1}. {name}" for at, name in enumerate(names)]
    chosen = st.selectbox(label, shown, key=key, width=320)
    return shown.index(chosen) if chosen in shown else 0


# --- Charts ---


def plot(key: str, chart: Chart, zoomed: Callable[[tuple[float, float] | None], None] | None = None) -> None:
    """Draw a chart as wide as the page. A zoom selects steps, unless `zoomed` handles it."""
    browser.plot(
        key,
        chart,
        zoomed=zoomed
        or (lambda seen: show_steps("" if seen is None else f"{max(0, seen[0]):.0f}:{max(0, seen[1]):.0f}")),
    )


_IN_VIEW: Final = "steps in view"


def show_steps(asked: str) -> None:
    """Set the steps in view on all pages, as text such as ``300:500``, or "" for all."""
    st.session_state[_IN_VIEW] = asked


def _in_view() -> str:
    """Return the requested steps as text, initially those of the URL."""
    asked: str = st.session_state.setdefault(_IN_VIEW, st.query_params.get("steps", ""))
    return asked


def window(numbers: Sequence[int] | pl.Series) -> tuple[int, int] | None:
    """Return the steps in view, or None for all."""
    return steps.window_of(_in_view(), list(numbers))


def zoom() -> None:
    """Write the steps in view into the URL, and draw a button for all steps."""
    asked = _in_view()
    if asked and st.query_params.get("steps") != asked:
        st.query_params["steps"] = asked
    elif not asked and "steps" in st.query_params:
        del st.query_params["steps"]
    st.button("reset zoom", type="tertiary", disabled=not asked, on_click=show_steps, args=("",))


def steps_chart(
    key: str,
    run: Run,
    frame: pl.DataFrame,
    panels: Sequence[Panel],
    *,
    diagnosis: LatestDiagnosis | None,
    said: str = "",
) -> None:
    """Draw `panels` of a run for the steps in view (see `zoom`), with events as marks."""
    onset = steps.onset_of(diagnosis)
    seen = window(frame["step"])
    marks = data.events_of(run)
    baseline = None if diagnosis is None else diagnosis.document["growth"]["baseline"]
    awaited = data.awaits(run, frame)
    colors = theme()
    version = (data.version_of(run)[:2], seen, tuple(panels), marks, baseline, onset, awaited, said, colors.mode)

    def make() -> Chart:
        return steps.steps_chart(
            run.name,
            frame,
            panels,
            colors,
            window=seen,
            marks=marks,
            baseline=baseline,
            since=onset,
            awaited=awaited,
            said=said,
        )

    plot(key, made((key, run.name, colors.mode, seen), version, make))


def made(place: Hashable, version: Hashable, make: Callable[[], T]) -> T:
    """Return the result of `make` for this version, computed once for all sessions."""
    return data.kept(("made", place), version, make)
