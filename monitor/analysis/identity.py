"""Test of bit equality between engine and trainer ("true on-policy"), with a check that the records can show it.

A log-ratio of exactly 0 everywhere is either the best possible result or one array passed twice. It counts as identical
only with two independent computations: r recorded by the engine and t recorded by the trainer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Final, Literal

import pyarrow as pa

Verdict = Literal["identical", "different", "not measured"]
ENOUGH_STEPS: Final = 2


@dataclass(frozen=True, slots=True)
class StepFacts:
    """Facts of a run about identical log-probs: one row of ``sql/slice_identity.sql``."""

    step: int
    n_expected: int  # tokens under the mask
    n: int  # valid ones
    zero: int  # log-ratio exactly 0
    sequences: int
    independent: int  # sequences with r seen at the engine
    blank: int = 0  # valid tokens of sequences in which every log-prob is exactly 0

    @property
    def differs(self) -> bool:
        """True if some token has two different log-probs, which proves two computations."""
        return self.zero < self.n

    @property
    def identical(self) -> bool:
        """True if every token was measured and two independent computations agree in every bit."""
        return self.zero == self.n == self.n_expected > self.blank and self.independent == self.sequences


@dataclass(frozen=True, slots=True)
class Identity:
    """Verdict on a run's newest steps. `since_step`: first step of the uninterrupted series with this verdict."""

    verdict: Verdict
    reason: str
    since_step: int | None = None


def judge(steps: Sequence[StepFacts]) -> Identity:
    """Return the verdict about the newest of `steps` (ascending).

    >>> judge([StepFacts(7, 100, 100, 100, 4, 4), StepFacts(8, 90, 90, 90, 4, 4)]).verdict
    'identical'
    >>> judge([StepFacts(7, 100, 100, 100, 4, 0), StepFacts(8, 90, 90, 90, 4, 0)]).verdict
    'not measured'
    """
    if not steps:
        return Identity("not measured", "no step has been trained on yet")
    newest = steps[-1]
    if newest.differs:
        since = _stretch(steps, "differs")[-1].step
        return Identity(
            "different",
            f"{newest.n - newest.zero} of {newest.n} tokens differ in step {newest.step}; normal unless both sides "
            "were set up to be identical",
            since,
        )
    if newest.identical:
        return _same(_stretch(steps, "identical"))
    return Identity("not measured", _why(newest))


def _same(stretch: Sequence[StepFacts]) -> Identity:
    if len(stretch) < ENOUGH_STEPS:
        return Identity(
            "not measured", f"only step {stretch[0].step} is bitwise identical; {ENOUGH_STEPS} steps are needed"
        )
    words = f"all tokens of {len(stretch)} steps have bitwise identical log-probs in engine and trainer"
    return Identity("identical", words, stretch[-1].step)


def _stretch(steps: Sequence[StepFacts], name: str) -> list[StepFacts]:
    """Return the longest series of newest steps that satisfy the condition, newest first."""
    return list(takewhile(lambda facts: bool(getattr(facts, name)), reversed(steps)))


def _why(facts: StepFacts) -> str:
    if not facts.n:
        return f"step {facts.step} has no token with both log-probs"
    if facts.n == facts.blank:
        return (
            f"every log-prob of step {facts.step} is exactly 0 on both sides: they look like arrays that were never "
            "filled"
        )
    if facts.n < facts.n_expected:
        return (
            f"{facts.n_expected - facts.n} of {facts.n_expected} tokens of step {facts.step} are broken or lack a "
            "log-prob"
        )
    return (
        f"log-probs of step {facts.step} are bitwise identical, but those of {facts.sequences - facts.independent} of "
        f"{facts.sequences} sequences were not recorded at the engine: one array may have been passed twice"
    )


def facts_of(table: pa.Table) -> list[StepFacts]:
    """Return the rows of ``sql/slice_identity.sql``."""
    return [StepFacts(**row) for row in table.drop_columns("run").to_pylist()]
