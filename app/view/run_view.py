"""The view of a run: one document that terminal, ``--json``, page, report and messages share.

The JSON form is public API, one document. Unknown values are null:

    {"run", "verdict": "healthy|watch|unknown|growing|critical|calibrating|no_data", "since_step", "doubling_steps",
     "layer": "semantic|inference_path|objective|none|unknown",
     "findings": [{"cause", "layer", "confidence", "evidence": {…}, "explanation", "fix", "settings": [{…}],
                   "since_step", "share": {…}, "urgency", "vetoes"}],
     "level": {"k3", "status", …} | null,
     "not_measured": [{"what", "why", "how"}],
     "correction": {"advice": "enable|do_not_enable|not_needed", "why", "mode", "phase", "waiting", "stopped",
                    "from_step", "config", "problem", "effect": {"judgement", "words", "step"} | null,
                    "figures": […], "actions": […]},
     "judgement": {"severity", "words", "verdict", "step", "late": since which step it is not judged | null,
         "alerts", …} of the run as a whole; null with ``--steps``,
     "state", "reason", "last_step", "steps", "sequences", "tokens", "last_record_at", "alerts": those that fire, …
         and what was lost or waits, see `logprobe.app.view.records.RecordsDocument`,
     "lacks": [{"level": "problem|note|ok", "text", "remedy"}],
     "accepted": [{"cause", "because", "up_to", "by", "at"}], also of causes that are not found now,
     "incident": {"id", "opened_at", "since_step", "cause", "closed_at", "facts", "happened", "changes",
                  "last_good_step", "checkpoint", "checkpoint_folder"} | null: the last one}

The diagnosis is the stored one, as on pages and in messages. A run without one is diagnosed now. With ``--steps`` the
diagnosis covers these steps alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from logprobe.alerts.controller.standing import Standing
from logprobe.app.text.correction import in_force
from logprobe.app.text.judgement import as_document
from logprobe.app.view import account as accounts
from logprobe.app.view import correction as corrections
from logprobe.app.view import records as recorded
from logprobe.monitor.home import Home
from logprobe.monitor.judgement import Judgement
from logprobe.monitor.judging.accepted import accepted
from logprobe.monitor.judging.diagnosing import diagnose, diagnosis_of
from logprobe.monitor.judging.document import DiagnosisDocument, leading
from logprobe.monitor.judging.judgement import Acceptance
from logprobe.monitor.reader import Reader


@dataclass(frozen=True, slots=True)
class RunView:
    """View of a run, shared by all renderings.

    Attributes:
        diagnosis: layer at fault, onset and causes.
        kept: true if the diagnosis is the stored one, which may be older than the newest step.
        judgement: judgement of the whole run, alerts included, or None for a range of steps.
        standing: state of its correction.
        correction: document of its correction and its effect.
        records: recorded, lost and waiting records.
        accepted: accepted findings.
        account: account of its last incident or of the present run, or None if neither was read.
    """

    diagnosis: DiagnosisDocument
    kept: bool
    judgement: Judgement | None
    standing: Standing
    correction: corrections.CorrectionState
    records: recorded.RecordsDocument
    accepted: Sequence[Acceptance]
    account: accounts.Account | None

    @property
    def run(self) -> str:
        """Name of the run."""
        return self.diagnosis["run"]

    @property
    def severity(self) -> str:
        """Severity of the run, or of the requested steps."""
        if self.judgement is not None:
            return self.judgement.severity
        return "critical" if self.diagnosis["verdict"] == "critical" else "unknown"

    def document(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {
            **self.diagnosis,
            **self.records,
            "lacks": [lack._asdict() for lack in recorded.lacks(self.records)],
            "judgement": None if self.judgement is None else as_document(self.judgement),
            "correction": {**in_force(self.diagnosis, self.standing), **self.correction},
            "accepted": [{"cause": each.cause, **each.document()} for each in self.accepted],
            "incident": self.account and self.account.incident(),
        }


def read(
    reader: Reader,
    home: Path,
    run: str,
    *,
    steps: tuple[int | None, int | None] = (None, None),
    now: datetime | None = None,
    account: bool = False,
) -> RunView:
    """Read the view of a run. `account`: also read the account of a run without an incident.

    Raises `ConfigurationError` for an unknown run, and the reader's errors.
    """
    records = recorded.read(reader, home, run, now=now or datetime.now(UTC))
    agreed = accepted(reader, run)
    whole = steps == (None, None)
    diagnosis, kept = (
        diagnosis_of(reader, run) if whole else (diagnose(reader, run, steps=steps, accepted=agreed), False)
    )
    opened, standing = accounts.newest(reader, run), Standing.read(reader, run)
    told = opened is not None or account
    return RunView(
        diagnosis=diagnosis,
        kept=kept,
        judgement=(records["judgement"] if kept else _judged(records["judgement"], diagnosis)) if whole else None,
        standing=standing,
        correction=corrections.state_of(reader, Home(home), run, standing),
        records=records,
        accepted=agreed,
        account=accounts.read(reader, run, standing, diagnosis=diagnosis, opened=opened) if told else None,
    )


def _judged(judgement: Judgement, diagnosis: DiagnosisDocument) -> Judgement:
    """Return the judgement of a run from a new diagnosis."""
    first, level = leading(diagnosis), diagnosis["level"]
    return replace(
        judgement,
        verdict=diagnosis["verdict"],
        since_step=diagnosis["since_step"],
        cause=None if first is None else first["cause"],
        advice=diagnosis["correction"]["advice"],
        level=None if level is None else level["status"],
        step=judgement.newest,
        behind=0,
        waiting=None,
    )
