"""Interface of the place that stores segments and provides control documents, common to a bucket and Ray."""

from __future__ import annotations

from typing import Protocol


class Place(Protocol):
    """Store or process that keeps segments. It is safe from several threads, and every method raises `OSError`."""

    def put(self, name: str, content: bytes) -> None:
        """Store the segment ``RUN/WRITER/FILE`` and return once it is safe. After an error, its state is unknown."""

    def control(self, name: str, tag: str | None) -> tuple[bytes | None, str | None]:
        """Return the control document of a run and its tag, or None and `tag` if unchanged."""

    def note(self, node: str, content: bytes) -> None:
        """Store the state of a node."""
