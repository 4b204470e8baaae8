"""The exceptions that logprobe raises.

Each one also derives from the matching standard exception, so a host can catch it without logprobe. Messages name
object, fact and remedy.
"""

from __future__ import annotations


class LogprobeError(Exception):
    """Base of all errors raised on purpose by logprobe."""


class ConfigurationError(LogprobeError, ValueError):
    """A wrong or missing argument, setting or environment variable; raised at start-up, never in mid-run."""


class InputError(LogprobeError, ValueError):
    """Arrays handed to a collector do not fit together (shape, length, dtype).

    Inside a `Recorder` it is counted as a health record and never reaches the host.
    """


class SegmentError(LogprobeError, OSError):
    """A spool file cannot be trusted. `reason` is a short identifier used in counters and in the quarantine ledger.

    Reasons: ``foreign`` (not a segment), ``truncated``, ``checksum``, ``future_schema``, ``unreadable``, ``columns``,
    ``too_large``.
    """

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class HomeBusyError(LogprobeError, RuntimeError):
    """Another service owns this home."""


class StoreError(LogprobeError, RuntimeError):
    """The DuckDB store cannot be opened, migrated or written."""


class StoreDamagedError(StoreError):
    """The store's file or its log cannot be read; starting again changes nothing."""


class RunDeletedError(LogprobeError, ValueError):
    """The run was deleted. Its name cannot be reused."""


class QueryError(LogprobeError, ValueError):
    """A query was refused (not read-only) or failed."""


class ServiceUnavailableError(LogprobeError, ConnectionError):
    """No service answers for this data directory."""


class MissingExtraError(LogprobeError, ImportError):
    """A command needs packages of an extra that is not installed."""


class DirectiveError(LogprobeError, ValueError):
    """A directive for the trainer's objective cannot be trusted; the last good one stays in effect."""


class ChannelError(LogprobeError, ConnectionError):
    """A notification channel did not accept a message. The text never contains a secret.

    Reasons: ``refused`` (permanently rejected), ``setup`` (wrong credentials or target), ``busy`` (retry after
    `retry_after` seconds), ``unreachable`` (not delivered), ``uncertain`` (possibly delivered).
    """

    def __init__(self, reason: str, message: str, *, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.reason = reason
        self.retry_after = retry_after
