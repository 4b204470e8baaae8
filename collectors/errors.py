"""Exceptions that logprobe raises.

Each one also derives from the matching standard exception, so a host can catch it without logprobe. Messages name
object, fact and remedy.
"""

from __future__ import annotations


class LogprobeError(Exception):
    """Base class of all errors that logprobe raises on purpose."""


class ConfigurationError(LogprobeError, ValueError):
    """Wrong or missing argument, setting or environment variable, raised at start-up and never during a run."""


class InputError(LogprobeError, ValueError):
    """Mismatch between arrays that a host passed to a collector (shape, length, dtype).

    Inside a `Recorder` it is counted as a health record and never reaches the host.
    """


class SegmentError(LogprobeError, OSError):
    """Untrustworthy spool file. `reason` is a short identifier for counters and the quarantine ledger.

    Reasons: ``foreign`` (not a segment), ``truncated``, ``checksum``, ``future_schema``, ``unreadable``, ``columns``,
    ``too_large``.
    """

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class HomeBusyError(LogprobeError, RuntimeError):
    """Conflict with another service that owns the data directory."""


class StoreError(LogprobeError, RuntimeError):
    """Failure to open, migrate or write the DuckDB store."""


class StoreDamagedError(StoreError):
    """Corrupt store file or log. A restart does not repair it."""


class RunDeletedError(LogprobeError, ValueError):
    """Use of a deleted run. Its name cannot be reused."""


class QueryError(LogprobeError, ValueError):
    """Refused (not read-only) or failed query."""


class ServiceUnavailableError(LogprobeError, ConnectionError):
    """Absence of a service for this data directory."""


class MissingExtraError(LogprobeError, ImportError):
    """Command whose packages belong to an extra that is not installed."""


class DirectiveError(LogprobeError, ValueError):
    """Untrustworthy directive for the trainer's objective. The last valid one stays in effect."""


class ChannelError(LogprobeError, ConnectionError):
    """Notification channel's refusal of a message. The text never contains a secret.

    Reasons: ``refused`` (permanently rejected), ``setup`` (wrong credentials or target), ``busy`` (retry after
    `retry_after` seconds), ``unreachable`` (not delivered), ``uncertain`` (possibly delivered).
    """

    def __init__(self, reason: str, message: str, *, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.reason = reason
        self.retry_after = retry_after
