"""The Data page about one run, as blocks: what it lacks, what of it was lost, and who records it. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from logprobe.app.dashboard.elements.blocks import Block, facts, heading, row, table
from logprobe.app.text import nodes
from logprobe.app.text.gaps import doubled, faults_of, gaps_of, measured, raw_sampled, sent
from logprobe.app.text.lost_records import about_event
from logprobe.app.text.numbers import counted, data_size, number, when
from logprobe.app.text.tables import harmless

Row = Mapping[str, Any]

_COLLECTORS: Final = ("collector", "process", "state", "self-test", "recorded", "lost", "queue and cost")
_NODES: Final = ("node", "behind", "clock", "logprobe", "token", "problem")
_PROBLEMS: Final = ("complaint", "times", "lost", "last", "message", "what to do")
_TWICE: Final = "totals of these steps are too large, means hardly change; record into another run name, and report it as a bug in logprobe"


@dataclass(frozen=True)
class Account:
    """What is known of one run's records: rows of stored queries, and the on-policy verdict.

    Attributes:
        gaps: of `cli_gaps`; None: nothing was ingested.
        problems: of `cli_problems`.
        collectors: of `app_data_collectors`.
        on_policy: in words.
        doubled: of `cli_doubled`; None: nothing is in the store twice.
        sent: of `cli_sent`; None: not asked.
        nodes: of `relay_nodes`; none: the run shares a disk with the service.
    """

    gaps: Row | None
    problems: Sequence[Row]
    collectors: Sequence[Row]
    on_policy: str
    doubled: Row | None = None
    sent: Row | None = None
    nodes: Sequence[Row] = ()


def run_blocks(run: str, account: Account, alerts: Sequence[str] | None) -> list[Block]:
    """What a run's records allow to be measured, and what of them was lost. `alerts`: that fire; None: nobody has looked yet."""
    firing = "the rules have not been evaluated yet" if alerts is None else ", ".join(alerts) or "none fires"
    stated = [("on-policy", account.on_policy), ("alerts", firing)]
    if account.gaps is not None:
        sampled = raw_sampled(account.gaps)
        stated = [("measured", measured(account.gaps)), *([("sampling", sampled)] if sampled else []), *stated]
    if account.sent is not None and (words_on_sent := sent(account.sent)):
        stated = [("sent", words_on_sent), *stated]
    problems = [_problem(each) for each in account.problems]
    return [
        heading(f"Missing inputs of {harmless(run)}", "and the metrics they affect"),
        facts(stated),
        table("lacks", ("what", "what to do"), _lacks(account), empty="None: everything can be measured."),
        heading("Drops and problems", "as reported by the run's collectors and ingest"),
        table("problems", _PROBLEMS, problems, empty="Nothing dropped, no problems reported."),
    ]


def _lacks(account: Account) -> list[Block]:
    gaps = account.gaps
    if gaps is None:
        return [row(["none of it has been ingested yet", "check the spool"])]
    twice = [] if account.doubled is None else [row([harmless(doubled(account.doubled)), _TWICE], tone="critical")]
    faults = [row([words, remedy], tone="critical") for words, remedy in faults_of(gaps)]
    return [*twice, *faults, *(row([words, remedy], tone="warning") for words, remedy in gaps_of(gaps))]


def _problem(each: Row) -> Block:
    lost = [
        f"{each['sequences_lost']:,} sequences" if each["sequences_lost"] else "",
        f"{each['tokens_lost']:,} tokens" if each["tokens_lost"] else "",
    ]
    cells = [
        f"{each['event'].replace('_', ' ')} ({harmless(each['component'] or '–')})",
        f"{each['times']:,}",
        ", ".join(filter(None, lost)) or "nothing",
        when(each["last_at"]),
        harmless(each["message"] or "–"),
        about_event(each["event"]) or "–",
    ]
    return row(cells, tone="critical" if each["severity"] == "error" else "warning")


def collectors_blocks(run: str, collectors: Sequence[Row]) -> list[Block]:
    """Who records a run, and how each of them is."""
    rows = [_collector(each) for each in collectors]
    empty = "No collector has reported."
    note = "most recent first; engines with the plugin have a self-test"
    return [heading(f"Collectors of {harmless(run)}", note), table("collectors", _COLLECTORS, rows, empty=empty)]


def nodes_blocks(run: str, found: Sequence[Row]) -> list[Block]:
    """How far the nodes that send through a relay are behind; nothing where none does."""
    if not found:
        return []
    rows = [
        row(
            [
                harmless(each["node"]),
                nodes.behind(each),
                nodes.clock(each) or "right",
                harmless(each["version"] or "–"),
                harmless(each["writer"]),
                harmless(each["problem"] or "none"),
            ],
            tone="warning" if nodes.is_late(each) else "",
        )
        for each in found
    ]
    return [
        heading(f"Nodes of {harmless(run)}", "that send through a relay; the one furthest behind first"),
        table("nodes", _NODES, rows, empty=""),
    ]


def _collector(each: Row) -> Block:
    started, counters = _document(each["started"]), _document(each["counters"])
    dropped = counters.get("dropped") or {}
    failed = each["failed"] or (each["self_test"] if each["self_test_severity"] == "error" else None)
    return row(
        [
            f"{each['component'] or '–'} {harmless(each['writer'])}",
            _process(started),
            _heard(each),
            harmless(each["self_test"] or "none"),
            _recorded(each, counters),
            _dropped(dropped, counters),
            _load(counters),
        ],
        tone="critical" if failed else "warning" if dropped else "",
    )


def _document(content: str | None) -> Mapping[str, Any]:
    """What a collector says of itself; it comes from outside, and may be anything."""
    try:
        found = json.loads(content or "{}")
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _process(started: Row) -> str:
    if not started:
        return "–"
    versions = started.get("versions")
    known = versions.items() if isinstance(versions, dict) else ()
    parts = [
        f"pid {started.get('pid', '–')} on {started.get('host', '–')}",
        "" if started.get("rank") is None else f"rank {started['rank']}",
        "" if started.get("replica") is None else f"replica {started['replica']}",
        ", ".join(f"{name} {version}" for name, version in known if version and name in {"logprobe", "torch", "vllm"}),
    ]
    return harmless("; ".join(filter(None, parts)))


def _heard(each: Row) -> str:
    if each["failed"]:
        return harmless(each["failed"])
    word = "closed cleanly" if each["closed"] else "last heard"
    return f"{word} {when(each['last_sign'] or each['last_segment'])}"


def _recorded(each: Row, counters: Row) -> str:
    written = counters.get("written") or {}
    if not written and each["segments"] is None:
        return "–"
    said = (
        [f"{_whole(written.get('tokens'))} tokens in {_whole(written.get('sequences'))} sequences"] if written else []
    )
    arrived = [] if each["segments"] is None else [f"{counted(each['segments'], 'file')} arrived"]
    return "; ".join([*said, *arrived])


def _whole(value: object) -> str:
    return f"{value:,}" if isinstance(value, int) else "–"


def _dropped(dropped: Row, counters: Row) -> str:
    if not counters:
        return "–"
    losses = [f"{reason.replace('_', ' ')}: {_loss(loss)}" for reason, loss in dropped.items()]
    last = counters.get("last_error")
    return harmless("; ".join([*losses, *([str(last)] if last and not losses else [])]) or "nothing")


def _loss(loss: object) -> str:
    if not isinstance(loss, dict):
        return str(loss)
    return (
        ", ".join(
            counted(count, str(what).removesuffix("s"))
            for what, count in loss.items()
            if isinstance(count, int) and count
        )
        or "0"
    )


def _load(counters: Row) -> str:
    """How full its queue is, what its disk says, and what it costs the host per call."""
    if not counters:
        return "–"
    queue, cost = counters.get("queue") or {}, counters.get("cost") or {}
    parts = []
    if isinstance(queue.get("limit_bytes"), int) and queue["limit_bytes"]:
        parts.append(f"queue {queue.get('bytes', 0) / queue['limit_bytes']:.0%} of {data_size(queue['limit_bytes'])}")
    parts.append(f"disk {counters.get('disk', '–')}")
    if cost.get("calls"):
        parts.append(f"{number(1e6 * cost.get('caller_seconds', 0.0) / cost['calls'])} µs a call")
    return harmless("; ".join(parts))
