"""Upper bound on an engine's losses if it is killed, recorded in advance.

The bound is written when it grows, when it has become far too large, and when no data is left. It does not cover
requests that arrive between two checks (ticks of the emitter).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from logprobe.collectors.vllm.capture import Sequence

_ROOM: Final = 5  # a bound that grows again is set a fifth too large, so that it does not grow at every look
_FAR_TOO_LARGE: Final = 2


@dataclass(frozen=True, slots=True)
class Unwritten:
    """Upper bound on unwritten sequences and their tokens. `tokens` is None if a request has no limit."""

    sequences: int = 0
    tokens: int | None = 0

    @classmethod
    def of(cls, sequences: Iterable[Sequence]) -> Unwritten:
        """Return the bound for running requests and for finished ones that are not yet written."""
        limits = [_limit(sequence) for sequence in sequences]
        return cls(len(limits), None if None in limits else sum(limit or 0 for limit in limits))

    def covers(self, other: Unwritten) -> bool:
        """Return whether this bound holds for `other`."""
        enough = self.tokens is None or (other.tokens is not None and other.tokens <= self.tokens)
        return other.sequences <= self.sequences and enough

    def instead_of(self, previous: Unwritten) -> Unwritten | None:
        """Return the bound that replaces `previous`, or None if it still holds."""
        if previous.covers(self):
            too_large = previous.sequences > _FAR_TOO_LARGE * self.sequences
            return self if too_large else None
        if not previous.sequences:
            return self
        tokens = None if self.tokens is None else self.tokens + self.tokens // _ROOM
        return Unwritten(self.sequences + self.sequences // _ROOM, tokens)


def _limit(sequence: Sequence) -> int | None:
    """Return the maximum final number of tokens of a request, or None without a limit."""
    if sequence.finish_reason is not None:
        return len(sequence.tokens)
    limit = getattr(sequence.params, "max_tokens", None)
    return None if limit is None else max(int(limit), len(sequence.tokens))
