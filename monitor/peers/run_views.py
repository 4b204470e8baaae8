"""A peer's view of the steps of a recorded run, from the raw tokens that are still kept."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from logprobe.collectors.errors import QueryError
from logprobe.monitor import queries
from logprobe.monitor.peers.view import Report, named, view
from logprobe.monitor.ragged import float_lists
from logprobe.monitor.reader import Reader


@dataclass(frozen=True)
class StepView:
    """What a peer would have logged for one step."""

    step: int
    sequences: int  # of the step
    seen: int  # of them, those whose raw tokens are kept with both sides; the view is of these
    report: Report


def run_views(
    reader: Reader, run: str, peer: str, *, first: int | None = None, last: int | None = None, **options: Any
) -> Iterator[StepView]:
    """The view of each computed step between `first` and `last`, both included; one step's tokens in memory at a time.

    Raises:
        ConfigurationError: an unknown peer or option.
        QueryError: raw tokens are kept for none of these steps.
    """
    named(peer).parse(options)
    steps = queries.cli_steps(reader, run=run, first=first, last=last).to_pylist()
    seen = 0
    for row in steps:
        of_step = _step_view(reader, run, peer, row, options)
        seen += of_step.seen
        yield of_step
    if steps and not seen:
        raise QueryError(
            f"run {run!r}: raw tokens with log-probs of both sides are kept for none of these steps, and a view of "
            f"{peer} "
            "needs them; `logprobe up --keep-gib` sets how many are kept"
        )


def _step_view(reader: Reader, run: str, peer: str, row: queries.CliSteps, options: dict[str, object]) -> StepView:
    tokens = queries.peer_tokens(reader, run=run, first=row["step"], last=row["step"])
    if not tokens.num_rows:
        return StepView(row["step"], row["sequences"], 0, Report({}, named(peer).prefixes))
    report = view(
        peer,
        float_lists(tokens["rollout"]),
        float_lists(tokens["trainer"]),
        float_lists(tokens["mask"]),
        current_logprobs=_lists_or_none(tokens["current"]),
        reference_logprobs=_lists_or_none(tokens["reference"]),
        advantages=_lists_or_none(tokens["advantage"]),
        **options,
    )
    return StepView(row["step"], row["sequences"], tokens.num_rows, report)


def _lists_or_none(column: pa.ChunkedArray) -> list[NDArray[np.float64]] | None:
    """As `float_lists`; None where nothing is known."""
    lists = float_lists(column)
    return None if all(np.isnan(values).all() for values in lists) else lists
