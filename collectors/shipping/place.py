"""Interface of the place where segments go and where a node hears what to do: the same for a bucket and for Ray."""

from __future__ import annotations

from typing import Protocol


class Place(Protocol):
    """A store or a process that keeps segments. Safe from several threads; every method raises `OSError`."""

    def put(self, name: str, content: bytes) -> None:
        """Return when the segment ``RUN/WRITER/FILE`` is safe there. After an error it may or may not be there."""

    def control(self, name: str, tag: str | None) -> tuple[bytes | None, str | None]:
        """Return the control document of a run and its tag, or None and `tag` if that is still the newest."""

    def note(self, node: str, content: bytes) -> None:
        """Store the state of a node."""
