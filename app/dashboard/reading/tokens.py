"""Data of the Tokens page: a run's steps, the worst sequences of one of them, and the tokens of one sequence."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from logprobe.app.dashboard.thinning import Floats
from logprobe.collectors.kernel.pairs import Pair
from logprobe.monitor import queries
from logprobe.monitor.analysis.token_view import Stated, stated
from logprobe.monitor.queries import Source
from logprobe.monitor.ragged import floats

LISTED: Final = 12  # sequences of a step
_RECENT: Final = 50  # steps among which the first one to be shown is looked for
_UNMEASURED: Final = 3


@dataclass(frozen=True, eq=False)
class StepList:
    """Columns of a run's steps, shape [steps], ascending. `k3` and `broken` are NaN for steps without the pair."""

    step: NDArray[np.int64]
    k3: Floats
    broken: Floats
    kept: NDArray[np.int64]  # sequences whose raw tokens are still there

    def suggested(self) -> int | None:
        """Return the worst recent step with raw tokens, or None if there is no step. A step with broken tokens comes
        before one with a large K3.

        Consider all recent steps if none has raw tokens.
        """
        if not len(self.step):
            return None
        with_tokens = np.flatnonzero(self.kept > 0)
        chosen = (with_tokens if len(with_tokens) else np.arange(len(self.step)))[-_RECENT:]
        columns = [np.nan_to_num(column[chosen], nan=-1.0) for column in (self.k3, self.broken)]
        return int(self.step[chosen[np.lexsort((self.step[chosen], *columns))[-1]]])


@dataclass(frozen=True)
class StepTokens:
    """One step for one pair.

    Attributes:
        step: number of the step.
        pair: pair whose statistics order the sequences.
        sides: rows of ``app_tokens_sides``.
        sequences: rows of ``app_tokens_sequences``, the worst first, then a few without statistics of the pair.
        chosen: sequence whose tokens are shown, or None.
        asked: requested sample if it is missing from this step, or None.
        says_correction: true if the trainer reported a correction.
        correction: that correction, or None if it cannot be recomputed.
    """

    step: int
    pair: Pair
    sides: list[queries.AppTokensSides]
    sequences: list[queries.AppTokensSequences]
    chosen: Mapping[str, Any] | None
    asked: str | None
    says_correction: bool
    correction: Stated | None

    def showing(self, sample: str) -> StepTokens | None:
        """Return this step with the sequence `sample` chosen, or None if that sequence is not listed."""
        named = next((sequence for sequence in self.sequences if sequence["sample_id"] == sample), None)
        return None if named is None else replace(self, chosen=named, asked=None)


def read_steps(source: Source, run: str, pair: Pair) -> StepList:
    """Return the steps of a run. Raises the errors of `Reader.read`."""
    rows = queries.app_tokens_steps(source, run=run, pair=pair)
    return StepList(
        step=rows["step"].to_numpy().astype(np.int64),
        k3=floats(rows["k3_kl"]),
        broken=floats(rows["broken"]),
        kept=rows["kept"].to_numpy().astype(np.int64),
    )


def read_step(source: Source, run: str, step: int, pair: Pair, sample: str | None = None) -> StepTokens:
    """Return one step with its worst sequences, and the tokens of `sample` or, if it is None, of the worst sequence.
    Raises the errors of `Reader.read`.
    """
    sequences = queries.app_tokens_sequences(
        source, run=run, step=step, pair=pair, count=LISTED, others=_UNMEASURED, sample=sample
    ).to_pylist()
    documents = queries.app_tokens_corrections(source, run=run, step=step)["correction"].to_pylist()
    step_tokens = StepTokens(
        step=step,
        pair=pair,
        sides=queries.app_tokens_sides(source, run=run, step=step).to_pylist(),
        sequences=sequences,
        chosen=next(iter(sequences), None),
        asked=sample,
        says_correction=bool(documents),
        correction=stated(documents),
    )
    return step_tokens if sample is None else step_tokens.showing(sample) or step_tokens
