"""Every metric of the catalog, for the runs whose metrics somebody looks at: too many to be read for pages that show ten."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from typing import Final

from logprobe.app.dashboard.data.series import RunSeries, merge
from logprobe.monitor.analysis.slices import Source
from logprobe.monitor.metrics.catalog import KEYS

_RUNS: Final = 4  # about 1 MB per 1,000 steps each


class CatalogSeries:
    """Columns of whole runs, grown by what changed. Thread-safe; one serves all sessions."""

    def __init__(self, source: Source, metrics: Sequence[str] = KEYS) -> None:
        self._source = source
        self._metrics = list(metrics)
        self._lock = threading.Lock()
        self._known: OrderedDict[str, RunSeries] = OrderedDict()

    def of(self, run: str, revision: int) -> RunSeries:
        """Columns of `run`, read again where they are not those of `revision`.

        Raises:
            ServiceUnavailableError: nobody answers.
            QueryError: see `Reader.read`.
        """
        with self._lock:
            known = self._known.get(run, RunSeries(run))
            if known.revision > revision:  # the store was recreated
                known = RunSeries(run)
            if known.revision != revision:
                known = self._grown(known)
            self._known[run] = known
            self._known.move_to_end(run)
            while len(self._known) > _RUNS:
                self._known.popitem(last=False)
            return known

    def _grown(self, known: RunSeries) -> RunSeries:
        # Steps first: a step recomputed between the two reads has newer points than its revision says, and is read again.
        changed = {"run": known.run, "since": known.revision}
        summaries = self._source.read("app_steps", **changed)
        return merge(known, summaries, self._source.read("app_points", **changed, metrics=self._metrics))
