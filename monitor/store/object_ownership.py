"""Whether the objects below a prefix are this store's: if not, nothing is sent there and nothing is removed.

As ``raw/`` does, a prefix carries the id of the store that writes there and the home it is used from, in an object ``!store.json``. Two homes
on one prefix, a copied home, or a prefix that somebody else has filled are a mistake that only a person can put right.
"""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from logprobe.collectors.errors import ObjectStoreError
from logprobe.monitor.home import Home

if TYPE_CHECKING:
    from logprobe.monitor.objects.store import ObjectStore

MARK: Final = "!store.json"  # no run's folder is called so
_BELOW: Final = 3  # <prefix>/<run>/<kind>/<file>
_TRUSTED_SECONDS: Final = 60.0  # between two looks at a mark


class _Mark(NamedTuple):
    store: str
    home: str
    host: str


class ObjectOwnership:
    """Of one open store. Safe to share between threads; a look costs one round trip a minute."""

    def __init__(
        self,
        home: Home,
        store_id: Callable[[], str],
        objects: Callable[[], ObjectStore],
        listed: Callable[[], Sequence[str]],
    ) -> None:
        """`listed`: addresses of all objects by the store's account. Looks at nothing yet."""
        self._home = home
        self._store_id = store_id
        self._objects = objects
        self._listed = listed
        self._turn = threading.Lock()
        self._trusted: dict[str, float] = {}  # prefix → when its mark was this store's, on the monotonic clock
        self.problem: str | None = None  # as seen last

    def require(self, prefix: str) -> None:
        """Raises `ObjectStoreError`, one sentence that says what to do, unless the objects below `prefix` are this store's."""
        with self._turn:
            if time.monotonic() - self._trusted.get(prefix, -_TRUSTED_SECONDS) < _TRUSTED_SECONDS:
                return
            self._trusted.pop(prefix, None)
            self.problem = self._find_problem(prefix, self._said(prefix))
            if self.problem:
                raise ObjectStoreError(self.problem)
            self._trusted[prefix] = time.monotonic()

    def require_of(self, url: str) -> None:
        """The same of an object's address."""
        prefix = url.rsplit("/", _BELOW)[0]
        if not prefix.partition("://")[2].strip("/"):
            raise ObjectStoreError(
                f"{url} is not an address that a store writes to (<prefix>/<run>/<kind>/<file>): it is left alone"
            )
        self.require(prefix)

    def adopt(self, prefix: str) -> None:
        """Makes the objects this store's, whatever store wrote them. Raises `ObjectStoreError` when another home uses them."""
        with self._turn:
            said = self._said(prefix)
            if said is not None and self._is_used_elsewhere(said):
                raise ObjectStoreError(self._copied(prefix, said))
            self._claim(prefix)

    def _find_problem(self, prefix: str, said: _Mark | None) -> str | None:
        if said is None:
            ours = any(url.startswith(f"{prefix}/") for url in self._listed())
            if not ours and any(url.endswith(".parquet") for url, _ in self._objects().listed(prefix)):
                return self._foreign(prefix, "objects that this store does not know")
        elif said.store != self._store_id():
            return self._foreign(prefix, f"the objects of another store (home {said.home} on {said.host})")
        elif self._is_used_elsewhere(said):
            return self._copied(prefix, said)
        if said != self._own():
            self._claim(prefix)
            if self._said(prefix) != self._own():
                return self._foreign(prefix, "another store that began at the same moment")
        return None

    def _is_used_elsewhere(self, said: _Mark) -> bool:
        """Whether another home of the same store may still be in use: a copy. One that was moved leaves nothing behind."""
        if said.home == str(self._home.path):
            return False
        return said.host != socket.gethostname() or (Path(said.home) / self._home.database.name).exists()

    def _foreign(self, prefix: str, what: str) -> str:
        return (
            f"{prefix} has {what}: give this home a prefix of its own (`raw` of `storage` in logprobe.yaml); if the store that wrote "
            f"there is lost, run: logprobe rebuild --home {self._home.path}"
        )

    def _copied(self, prefix: str, said: _Mark) -> str:
        return (
            f"{prefix} belongs to the home {said.home} on {said.host}, of which {self._home.path} is a copy: give the copy a prefix "
            f"of its own (`raw` of `storage` in logprobe.yaml); if the home was moved here, remove {prefix}/{MARK}"
        )

    def _own(self) -> _Mark:
        return _Mark(self._store_id(), str(self._home.path), socket.gethostname())

    def _said(self, prefix: str) -> _Mark | None:
        content = self._objects().content(f"{prefix}/{MARK}")
        if content is None:
            return None
        try:
            return _Mark(**{name: str(value) for name, value in json.loads(content).items()})
        except (ValueError, TypeError, AttributeError) as error:
            raise ObjectStoreError(
                f"{prefix}/{MARK} cannot be read ({error}); remove it if no other home uses the prefix"
            ) from error

    def _claim(self, prefix: str) -> None:
        self._objects().write(json.dumps(self._own()._asdict()).encode(), f"{prefix}/{MARK}")
