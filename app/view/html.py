"""The view of a run as an HTML document without scripts and network access.

It suits phones, dark mode and screen readers.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from logprobe.app.text.html import Markup, element, joined, pairs, style, table
from logprobe.app.view import story
from logprobe.app.view.account import Account
from logprobe.app.view.chart import Chart, Line, figure
from logprobe.app.view.run_view import RunView
from logprobe.app.view.story import Facts, Part, Points, Section, Table
from logprobe.collectors.errors import ConfigurationError
from logprobe.monitor.judging.growth_rule import K3

# Nothing may be loaded or run, whatever is in the page: names and texts of rollouts come from outside.
_POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'"
_MOST: Final = 50  # rows of a long table, the newest


def report(view: RunView) -> str:
    """Return the view of a run as one file."""
    title, since = f"Report: {view.run}", view.diagnosis["since_step"]
    head = [
        Markup('<meta charset="utf-8">'),
        Markup('<meta name="viewport" content="width=device-width, initial-scale=1">'),
        Markup('<meta name="color-scheme" content="light dark">'),
        Markup(f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'),
        element("title", title),
        element("style", Markup(style())),
    ]
    trend = Markup() if view.account is None else _trend(view.account, since)
    body = element("body", element("main", element("h1", story.headline(view)), document(story.of_view(view), trend)))
    return f'<!doctype html>\n<html lang="en">\n{element("head", joined(head))}\n{body}\n</html>\n'


def document(sections: Iterable[Section], beside: Markup) -> Markup:
    """Return the sections as HTML, with the figure `beside` next to the first section."""
    first, *rest = [section_of(section, _MOST) for section in sections]
    return joined([element("div", first, beside, class_="first"), *rest])


def section_of(section: Section, most: int | None = None) -> Markup:
    """Return a section as HTML. `most`: rows of a long table that are shown, the newest, or None for all."""
    title = [element("h2", section.title[0].upper() + section.title[1:])] if section.title else []
    return element("section", *title, *(_part(section.title, part, most) for part in section.parts))


def _part(name: str, part: Part, most: int | None) -> Markup:
    if isinstance(part, Facts):
        return pairs((name, value) for name, value in part.pairs if value)
    if isinstance(part, Points):
        return element("ul", *(element("li", words) for words in part.lines))
    if isinstance(part, Table):
        rows = part.rows[-most:] if part.long and most else part.rows
        more = f"the newest {most} of {len(part.rows)}" if len(rows) < len(part.rows) else part.caption
        return table(part.caption or name, part.head, rows, caption=more)
    lines = [element("p", element("strong", f"{label}: ") if label else "", words) for label, words in part.lines]
    return joined([element("h3", f"{part.number}. {part.title}"), *lines])


def _trend(account: Account, since: int | None) -> Markup:
    """Return a chart of K3 over steps with the onset."""
    points = [(float(step), value) for step, value in sorted(account.history.trend(K3).items())]
    alt = f"K3 over {len(points):,} steps" + ("" if since is None else f"; onset at step {since}")
    mark = None if since is None else (float(since), f"since step {since}")
    return figure(Chart("K3", alt, [Line(account.history.label, points)], unit="nats", mark=mark))


def write(path: Path, text: str) -> None:
    """Write a document atomically. Raises `ConfigurationError` if the path is not writable."""
    try:
        with tempfile.NamedTemporaryFile("w", encoding="utf-8", dir=path.parent, suffix=".tmp", delete=False) as file:
            file.write(text)
        mask = os.umask(0)
        os.umask(mask)
        Path(file.name).chmod(0o666 & ~mask)  # as any file the user makes; temporary ones are private
        Path(file.name).replace(path)
    except OSError as error:
        raise ConfigurationError(
            f"the report {path} cannot be written ({error.strerror or error}); choose another --html"
        ) from error
