"""Slack message of a notification: Block Kit within Slack's limits, a colour bar, and a text for clients without
blocks.

Pure. Limits: https://docs.slack.dev/reference/block-kit/blocks (50 blocks, header 150 characters, section 3,000, field
2,000).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
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

# Severity: colour and sign; another one is shown as information.
_INFO: Final = ("#3b82f6", "🔵")
_LOOKS: Final = {
    "warning": ("#f2a93b", "🟠"),
    "critical": ("#d7263d", "🔴"),
    "ok": ("#2eb67d", "🟢"),
    "unknown": ("#8d939a", "⚪"),
}
_ANGLES: Final = str.maketrans("<>", "‹›")


def message(n: Notification) -> dict[str, Any]:
    """Return arguments of ``chat.postMessage`` or ``chat.update``: ``text``, ``blocks``, ``attachments``."""
    text = fallback(n)
    return {
        "text": text,
        "blocks": [_header(n)],
        "attachments": [{"color": colour(n), "fallback": text, "blocks": list(_details(n))}],
        "unfurl_links": False,
        "unfurl_media": False,
    }


def reply(n: Notification) -> dict[str, Any]:
    """Return arguments of ``chat.postMessage`` for a short reply in the thread. The first message shows the details."""
    blocks = [_titled(f"{_sign(n)} *{escape(messages.heading(n))}*", n.summary), *_fields(n), _origin(n)]
    return {"text": fallback(n), "blocks": blocks, "unfurl_links": False}


def fallback(n: Notification) -> str:
    """Return the text that notifications and screen readers show."""
    return fit(f"{_sign(n)} {messages.one_line(n)}", FALLBACK)


def colour(n: Notification) -> str:
    """Return a colour by the severity of the message, or of the run for an incident and a resolved message.

    Green means that no other fault remains.
    """
    return _LOOKS.get(_standing(n), _INFO)[0]


def escape(text: str) -> str:
    """Return `text` with mentions, links and control sequences of Slack escaped."""
    return steerless(text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def fit(text: str, limit: int) -> str:
    """Return `text` escaped and truncated to `limit` characters with an ellipsis, never within an escape.

    >>> fit("a < b & c", 11)
    'a &lt; b …'
    """
    whole = escape(text)
    if len(whole) <= limit:
        return whole
    kept, room = [], limit - 1
    for piece in map(escape, text):
        room -= len(piece)
        if room < 0:
            break
        kept.append(piece)
    return "".join(kept) + "…"


def _sign(n: Notification) -> str:
    return _LOOKS.get(_severity(n), _INFO)[1]


def _severity(n: Notification) -> str:
    over = n.state in {"resolved", CLOSED}
    return (n.run_severity or "unknown") if over else n.level or n.severity


def _standing(n: Notification) -> str:
    """Return the severity of the incident, or of the episode without an incident."""
    return (n.run_severity if n.incident else None) or _severity(n)


def _header(n: Notification) -> Block:
    # Plain text is not escaped; so that it still holds nothing that looks like a mention, angle brackets become others.
    text = harmless(f"{_LOOKS.get(_standing(n), _INFO)[1]} {messages.title(n)}").translate(_ANGLES)
    shown = text if len(text) <= HEADER else text[: HEADER - 1] + "…"
    return {"type": "header", "text": {"type": "plain_text", "text": shown, "emoji": True}}


def _details(n: Notification) -> Iterator[Block]:
    if n.incident is not None:
        yield _titled(f"*{escape(messages.heading(n))}*", n.summary)
    else:
        yield _section(fit(n.summary or messages.heading(n), SECTION))
    yield from _fields(n)
    if n.grouped:
        yield _titled("*Alerts that fire*", _bullets(n.grouped))
    if n.fix:
        yield _titled("*What to do*", n.fix)
    if n.changes:
        yield _titled("*Preceding changes*", _bullets(n.changes))
    if n.more:
        yield _section(f"`{fit(n.more, FIELD)}`")
    if link := _link(n):
        yield _section(link)
    yield _origin(n)


def _section(text: str) -> Block:
    return {"type": "section", "text": _marked(text)}


def _marked(text: str) -> Block:
    """Return marked-up text whose only links are those of logprobe.

    A run's name that resembles an address or a channel stays plain text.
    """
    return {"type": "mrkdwn", "text": text, "verbatim": True}


def _titled(lead: str, text: str) -> Block:
    return _section(f"{lead}\n{fit(text, SECTION - len(lead) - 1)}")


def _bullets(changes: Sequence[str]) -> str:
    more = len(changes) - _MOST_CHANGES
    lines = [f"• {change}" for change in changes[:_MOST_CHANGES]]
    return "\n".join([*lines, f"• and {more} more"] if more > 0 else lines)


def _fields(n: Notification) -> list[Block]:
    fields = [_marked(f"*{name}*\n{fit(value, FIELD - len(name) - 3)}") for name, value in messages.facts(n)]
    return [{"type": "section", "fields": fields}] if fields else []


def _link(n: Notification) -> str | None:
    """Return the link of a URL. Quote characters that could end the link early."""
    if n.link is None or not n.link.startswith(("http://", "https://")):
        return None
    words = "Open the incident" if n.incident else "Open the run" if n.step is None else f"Open step {n.step}"
    quoted = escape(quote(n.link, safe=":/?#[]@!$&'()*+,;=%-._~"))
    return f"<{quoted}|{words}>" if len(quoted) <= _MOST_LINK else None


def _origin(n: Notification) -> Block:
    text = fit(f"{n.at:%Y-%m-%d %H:%M:%S %Z} · episode {n.episode}", FIELD)
    return {"type": "context", "elements": [_marked(text)]}
