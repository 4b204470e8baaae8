"""`logprobe note RUN [WORDS]`: tags, owner and notes of a run, by themselves or at a step.

The JSON form: a list of ``{"kind": "tag"|"owner"|"note", "step", "words", "author", "time"}``, oldest first.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Final

from logprobe.alerts.annotation import ANNOTATE
from logprobe.alerts.run_notes import ACTIONS
from logprobe.app.parsers.arguments import home_path
from logprobe.app.runs import run_reader
from logprobe.app.text import tables
from logprobe.app.text.numbers import when
from logprobe.collectors.errors import ConfigurationError
from logprobe.collectors.plain_text import harmless
from logprobe.monitor import queries
from logprobe.monitor.home import Home
from logprobe.monitor.service.actions import perform

_WIDEST: Final = 110


def run(arguments: argparse.Namespace) -> int:
    """Writes down what is given; without anything, lists what there is."""
    wanted = list(_wanted(arguments))
    if arguments.step is not None and arguments.words is None:
        raise ConfigurationError("--step is for a note: say what happened at that step")
    if arguments.remove and arguments.words is None:
        raise ConfigurationError("--remove takes a note back: give its WORDS")
    for document in wanted:
        named = {"run": arguments.name, "author": arguments.author}
        done = perform(ACTIONS, Home(home_path(arguments)), ANNOTATE, {**named, **document})
        print(harmless(f"{done['run']}: {done['done']}: {document['words']}"))
    if not wanted:
        _list(arguments)
    return 0


def _wanted(arguments: argparse.Namespace) -> Iterator[dict[str, object]]:
    yield from ({"kind": "tag", "words": tag} for tag in arguments.tag)
    yield from ({"kind": "tag", "words": tag, "remove": True} for tag in arguments.untag)
    if arguments.owner is not None:
        yield {"kind": "owner", "words": arguments.owner}
    if arguments.words is not None:
        at = {} if arguments.remove and arguments.step is None else {"step": arguments.step}
        yield {"kind": "note", "words": arguments.words, "remove": arguments.remove, **at}


def _list(arguments: argparse.Namespace) -> None:
    with run_reader(arguments) as reader:
        rows = queries.annotation_list(reader, run=arguments.name).to_pylist()
    if arguments.json:
        print(tables.dump(rows))
        return
    shown = [[row["kind"], row["step"], row["words"], row["author"], when(row["time"])] for row in rows]
    print(tables.aligned(["kind", "step", "words", "by", "UTC"], shown, widest=_WIDEST) if rows else "nothing noted")
