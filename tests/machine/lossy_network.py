"""A bucket in memory in the place of `obstore`, and a channel: both lose answers, and each enforces its real rules."""

from __future__ import annotations

import datetime as dt
import hashlib
import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from obstore.exceptions import GenericError, NotFoundError, NotModifiedError

from logprobe.alerts.notification import Notification
from logprobe.alerts.sending.channels.channel import Outgoing, Receipt
from logprobe.collectors.errors import ChannelError

TROUBLES = ("refused", "answer lost", "corrupted", "late", "twice")


@dataclass
class Objects:
    """Objects by name. `trouble` is drawn before each call with `chance`, from `kinds`."""

    seed: int
    clock: Callable[[], float]
    objects: dict[str, tuple[bytes, float]] = field(default_factory=dict)
    kinds: tuple[str, ...] = ()
    chance: float = 0.0
    late: list[tuple[str, bytes]] = field(default_factory=list)  # puts that arrive once more, some time
    done: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)

    def _trouble(self, *possible: str) -> str | None:
        if self.late and self.random.random() < 0.3:
            self._store(*self.late.pop())
        if self.kinds and self.random.random() < self.chance:
            kind = self.random.choice(self.kinds)
            if kind in possible:
                self.done[kind] += 1
                return kind
        return None

    def _store(self, name: str, content: bytes) -> None:
        self.objects[name] = content, self.clock()

    def _tag(self, name: str) -> str:
        return f'"{hashlib.md5(self.objects[name][0], usedforsecurity=False).hexdigest()}"'

    # As `obstore` has them

    def put(self, _: Any, name: str, content: bytes, **how: Any) -> dict[str, str | None]:
        kind = self._trouble(*TROUBLES)
        if kind == "refused":
            raise GenericError("no connection")
        if kind == "corrupted":
            place = self.random.randrange(len(content))
            content = content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :]
        self._store(name, bytes(content))
        if kind in {"late", "twice"}:
            self.late.append((name, bytes(content)))
        if kind == "answer lost":
            raise GenericError("connection reset")
        return {"e_tag": self._tag(name)}

    def list(self, _: Any, prefix: str, **how: Any) -> Iterator[list[dict[str, Any]]]:
        if self._trouble("refused"):
            raise GenericError("no connection")
        rows = [
            {
                "path": name,
                "size": len(content),
                "last_modified": dt.datetime.fromtimestamp(at, dt.UTC),
                "e_tag": self._tag(name),
            }
            for name, (content, at) in sorted(self.objects.items())
            if name.startswith(prefix)
        ]
        yield rows

    def get(self, _: Any, name: str, options: Any = None) -> Any:
        if self._trouble("refused"):
            raise GenericError("no connection")
        if name not in self.objects:
            raise NotFoundError(name)
        tag = self._tag(name)
        if options and options.get("if_none_match") == tag:
            raise NotModifiedError(name)
        content = self.objects[name][0]
        return SimpleNamespace(bytes=lambda: content, meta={"e_tag": tag})

    def delete(self, _: Any, names: Iterable[str]) -> None:
        kind = self._trouble("refused", "answer lost")
        if kind == "refused":
            raise GenericError("no connection")
        for name in names:
            self.objects.pop(name, None)
        if kind == "answer lost":
            raise GenericError("connection reset")


class Phone:
    """A channel whose messages arrive, or do not, or arrive without an answer. It can be asked for a message."""

    kind = "console"
    name = "phone"
    pace = 0.0

    def __init__(self, seed: int) -> None:
        self.settle = dt.timedelta(0)
        self.random = random.Random(seed)
        self.arrived: list[Notification] = []
        self.ever: set[str] = set()  # keys of all that have arrived
        self.chance = 0.0  # of trouble
        self.at: Callable[[str], None] = lambda stage: None  # told before a message arrives, and after

    def check(self) -> list[str]:
        return []

    def send(self, outgoing: Outgoing) -> Receipt:
        note = outgoing.notification
        if outgoing.uncertain_since is not None and any(each.key == note.key for each in self.arrived):
            return {"id": note.key}
        trouble = self.random.random() < self.chance
        if trouble and self.random.random() < 0.5:
            raise ChannelError("uncertain", "no answer")
        self.at("arriving")
        self.arrived.append(note)
        self.ever.add(note.key)
        self.at("arrived")
        if trouble:
            raise ChannelError("uncertain", "no answer")
        return {"id": note.key}
