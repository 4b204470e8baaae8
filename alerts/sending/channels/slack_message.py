"""A notification as a Slack message: Block Kit inside Slack's limits, with a colour bar and a text for where blocks are
not shown.

Pure. Limits: https://docs.slack.dev/reference/block-kit/blocks (50 blocks, header 150 characters, section 3,000, field
2,000).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final
from urllib.parse import quote

from logprobe.alerts.notification import CLOSED, Notification
from logprobe.alerts.sending import messages
from logprobe.collectors.plain_text import harmless, steerless

Block = dict[str, object]

HEADER: Final = 150
SECTION: Final = 3000
FIELD: Final = 2000
FALLBACK: Final = 3000
_MOST_CHANGES: Final = 10
_MOST_LINK: Final = 2000

_COLOURS: Final = {
    "info": "#3b82f6",
    "warning": "#f2a93b",
    "critical": "#d7263d",
    "ok": "#2eb67d",
    "unknown": "#8d939a",
}
_SIGNS: Final = {"info": "🔵", "warning": "🟠", "critical": "🔴", "ok": "🟢", "unknown": "⚪"}
_ANGLES: Final = str.maketrans("<>", "‹›")


def message(notification: Notification) -> dict[str, Any]:
    """Return arguments of ``chat.postMessage`` or ``chat.update``: ``text``, ``blocks``, ``attachments``."""
    blocks = list(_details(notification))
    return {
        "text": fallback(notification),
        "blocks": [_header(notification)],
        "attachments": [
            {"color": colour(notification), "fallback": fallback(notification), "blocks": blocks},
        ],
        "unfurl_links": False,
        "unfurl_media": False,
    }


def reply(notification: Notification) -> dict[str, object]:
    """Arguments of ``chat.postMessage`` for the episode's thread: short, the first message shows the details."""
    lead = f"{_sign(notification)} *{escape(messages.heading(notification))}*\n"
    verdict = _section(lead + fit(notification.summary, SECTION - len(lead)))
    facts = [_fields(notification)] if messages.facts(notification) else []
    blocks = [verdict, *facts, _origin(notification)]
    return {"text": fallback(notification), "blocks": blocks, "unfurl_links": False}


def fallback(notification: Notification) -> str:
    """Return the text that notifications and screen readers show."""
    return fit(f"{_sign(notification)} {messages.one_line(notification)}", FALLBACK)


def colour(notification: Notification) -> str:
    """By severity; of an incident, and once resolved, by that of the run, which is green only where nothing else is
    wrong."""
    return _COLOURS.get(_standing(notification), _COLOURS["info"])


def escape(text: str) -> str:
    """`text` without anything that Slack reads as a mention, a link or a control sequence."""
    return steerless(text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def fit(text: str, limit: int) -> str:
    """`text` escaped and cut to `limit` characters, never within an escape; an ellipsis says that something is missing.

    >>> fit("a < b & c", 11)
    'a &lt; b …'
    """
    whole = escape(text)
    if len(whole) <= limit:
        return whole
    kept, room = [], limit - 1
    for character in text:
        piece = escape(character)
        room -= len(piece)
        if room < 0:
            break
        kept.append(piece)
    return "".join(kept) + "…"


def _sign(notification: Notification) -> str:
    return _SIGNS.get(_severity(notification), "🔵")


def _severity(notification: Notification) -> str:
    over = notification.state in {"resolved", CLOSED}
    return (notification.run_severity or "unknown") if over else notification.level or notification.severity


def _standing(notification: Notification) -> str:
    """Return the severity of the incident, else of the episode."""
    of_run = None if notification.incident is None else notification.run_severity
    return of_run or _severity(notification)


def _header(notification: Notification) -> Block:
    # Plain text is not escaped; so that it still holds nothing that looks like a mention, angle brackets become others.
    text = harmless(f"{_SIGNS.get(_standing(notification), _SIGNS['info'])} {messages.title(notification)}").translate(
        _ANGLES
    )
    shown = text if len(text) <= HEADER else text[: HEADER - 1] + "…"
    return {"type": "header", "text": {"type": "plain_text", "text": shown, "emoji": True}}


def _details(n: Notification) -> Iterator[Block]:
    if n.incident is not None:
        yield _titled(escape(messages.heading(n)), n.summary)
    else:
        yield _section(fit(n.summary or messages.heading(n), SECTION))
    if messages.facts(n):
        yield _fields(n)
    if n.grouped:
        yield _titled("Alerts that fire", _bullets(n.grouped))
    if n.fix:
        yield _titled("What to do", n.fix)
    if n.changes:
        yield _titled("Preceding changes", _bullets(n.changes))
    if n.more:
        yield _section(f"`{fit(n.more, FIELD)}`")
    if link := _link(n):
        yield _section(link)
    yield _origin(n)


def _section(text: str) -> Block:
    return {"type": "section", "text": _marked(text)}


def _marked(text: str) -> Block:
    """Marked-up text in which only our own links are links: a run's name that looks like an address or a channel stays
    a name."""
    return {"type": "mrkdwn", "text": text, "verbatim": True}


def _titled(title: str, text: str) -> Block:
    lead = f"*{title}*\n"
    return _section(lead + fit(text, SECTION - len(lead)))


def _bullets(changes: tuple[str, ...]) -> str:
    more = len(changes) - _MOST_CHANGES
    lines = [f"• {change}" for change in changes[:_MOST_CHANGES]]
    return "\n".join([*lines, f"• and {more} more"] if more > 0 else lines)


def _fields(n: Notification) -> Block:
    fields = []
    for name, value in messages.facts(n):
        lead = f"*{name}*\n"
        fields.append(_marked(lead + fit(value, FIELD - len(lead))))
    return {"type": "section", "fields": fields}


def _link(n: Notification) -> str | None:
    if n.incident is not None:
        return _anchor(n.link, "Open the incident")
    return _anchor(n.link, f"Open step {n.step}" if n.step is not None else "Open the run")


def _anchor(address: str | None, words: str) -> str | None:
    """Only web addresses; what could end the link or its address early is quoted."""
    if address is None or not address.startswith(("http://", "https://")):
        return None
    quoted = escape(quote(address, safe=":/?#[]@!$&'()*+,;=%-._~"))
    return f"<{quoted}|{words}>" if len(quoted) <= _MOST_LINK else None


def _origin(n: Notification) -> Block:
    return _context(f"{n.at:%Y-%m-%d %H:%M:%S %Z} · episode {n.episode}")


def _context(text: str) -> Block:
    return {"type": "context", "elements": [_marked(fit(text, FIELD))]}
