"""Endpoint ``/metrics`` for Prometheus, with the present state of a data directory.

The size is bounded by the worst live runs, a fixed list of metrics, and the newest computed step of each. A run that
ended, or has been silent for hours, is omitted. Prometheus then marks its series stale.

The output is in the OpenMetrics 1.0 text format, written by prometheus_client.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal, get_args

from prometheus_client.metrics_core import Metric
from prometheus_client.openmetrics.exposition import generate_latest

from logprobe.collectors.kernel.pairs import RATIO_PAIRS
from logprobe.monitor import judgement as judged
from logprobe.monitor import queries
from logprobe.monitor.judgement import Judgement, Severity
from logprobe.monitor.judging.document import Verdict
from logprobe.monitor.metrics.catalog import metric
from logprobe.monitor.service.jobs import Job
from logprobe.monitor.service.pipeline import backlog
from logprobe.monitor.service.status import Backlog
from logprobe.monitor.store.store import Store

MOST_RUNS: Final = 20
HOURS: Final = 6
SEVERITIES: Final = ("critical", "warning", "info")
VERDICTS: Final[tuple[str, ...]] = get_args(Verdict)

_OF_PAIRS: Final = ("k3_kl", "kl", "logprob_abs_diff_mean", "ratio_mean", "ess", "coverage")
_OF_STEPS: Final = ("weight_lag_mean", "weight_lag_max", "mixed_version_frac", "reward", "entropy", "response_length")
KEYS: Final = (*(f"{pair}.{key}" for key in _OF_PAIRS for pair in RATIO_PAIRS), *_OF_STEPS)
CONTENT_TYPE: Final = "application/openmetrics-text; version=1.0.0; charset=utf-8"


def exposition(store: Store, jobs: Iterable[Job], *, stuck: int = 0) -> str:
    """Return the text of one scrape. `stuck`: number of unreadable files in the spool.

    Raises `StoreError` or `QueryError` if the store does not answer.
    """
    live = queries.metrics_runs(store, hours=HOURS).to_pylist()
    judgements = judged.read(store, [run["run"] for run in live], store.time.now())
    severities = Counter(judgement.severity for judgement in judgements.values())
    runs = sorted(live, key=lambda run: judged.SEVERITIES.index(judgements[run["run"]].severity))[:MOST_RUNS]
    names = [run["run"] for run in runs]
    values = queries.metrics_newest(store, runs=names, keys=list(KEYS)).to_pylist()
    quarantined = store.query("SELECT count(*) AS files FROM quarantine")["files"][0].as_py()
    ingest = _of_ingest(backlog(store.home, store.archive.waits), quarantined, stuck)
    nodes = queries.nodes_furthest(store, runs=names).to_pylist()
    return render(
        [
            *_of_all(severities),
            *_of_runs(runs, judgements),
            *_of_steps(values),
            *_of_nodes(nodes),
            *ingest,
            *_of_jobs(list(jobs)),
        ]
    )


def _of_all(severities: Mapping[Severity, int]) -> list[Family]:
    """Count all live runs, including those without exported metrics."""
    live = Family("logprobe_live_runs", "gauge", f"Live runs; the worst {MOST_RUNS} have metrics here.")
    live.add(sum(severities.values()))
    by = Family("logprobe_live_runs_by_severity", "gauge", "Live runs, by severity.")
    for severity in judged.SEVERITIES:
        by.add(severities.get(severity, 0), severity=severity)
    return [live, by]


def _of_runs(runs: Sequence[queries.MetricsRuns], judgements: Mapping[str, Judgement]) -> list[Family]:
    step = Family("logprobe_step", "gauge", "Newest computed step of a live run.")
    last = Family(
        "logprobe_last_record_timestamp_seconds", "gauge", "Arrival time of the newest record of a run.", "seconds"
    )
    sequences = Family("logprobe_lost_sequences", "counter", "Sequences that collectors dropped.")
    tokens = Family("logprobe_lost_tokens", "counter", "Tokens that collectors dropped.")
    severity = Family("logprobe_severity", "stateset", "How severe verdict and firing alerts of a run are together.")
    verdict = Family("logprobe_verdict", "stateset", "Verdict of the diagnosis of a run.")
    alerts = Family("logprobe_alerts_firing", "gauge", "Firing alerts, by severity.")
    for run in runs:
        name = run["run"]
        step.add(run["step"], run=name)
        last.add(run["last_at"], run=name)
        sequences.add(run["lost_sequences"], run=name)
        tokens.add(run["lost_tokens"], run=name)
        judgement = judgements[name]
        states(severity, judgement.severity, judged.SEVERITIES, run=name)
        if judgement.verdict is not None:
            states(verdict, judgement.verdict, VERDICTS, run=name)
        firing = Counter(alert.severity for alert in judgement.alerts)
        for level in SEVERITIES:
            alerts.add(firing[level], run=name, severity=level)
    return [step, last, sequences, tokens, severity, verdict, alerts]


def _of_steps(values: Sequence[queries.MetricsNewest]) -> list[Family]:
    families = {key: Family(f"logprobe_{key}", "gauge", metric(f"backend.{key}").words) for key in _OF_PAIRS}
    families |= {key: Family(f"logprobe_{key}", "gauge", metric(key).words) for key in _OF_STEPS}
    for row in values:
        pair, dot, key = row["metric"].rpartition(".")
        labels = {"run": row["run"]} | ({"pair": pair} if dot else {})
        families[key].add(row["value"], **labels)
    return list(families.values())


def _of_nodes(rows: Sequence[queries.NodesFurthest]) -> list[Family]:
    nodes = Family("logprobe_nodes", "gauge", "Nodes that ship a run.")
    behind = Family(
        "logprobe_node_behind_seconds", "gauge", "Age of the oldest segment on any node of a run.", "seconds"
    )
    silent = Family(
        "logprobe_node_silent_seconds", "gauge", "Since a node of a run was last heard from, at most.", "seconds"
    )
    segments = Family("logprobe_node_segments", "gauge", "Segments that wait on the nodes of a run.")
    size = Family("logprobe_node_bytes", "gauge", "What waits on the nodes of a run.", "bytes")
    for row in rows:
        nodes.add(row["nodes"], run=row["run"])
        behind.add(row["behind_seconds"], run=row["run"])
        silent.add(row["silent_seconds"], run=row["run"])
        segments.add(row["segments"], run=row["run"])
        size.add(row["bytes"], run=row["run"])
    return [nodes, behind, silent, segments, size]


def _of_ingest(waiting: Backlog, quarantined: int, stuck: int) -> list[Family]:
    lag = Family(
        "logprobe_ingest_lag_seconds", "gauge", "Age of the oldest segment in the spool; 0: none waiting.", "seconds"
    )
    lag.add(waiting["oldest_seconds"] or 0.0)
    segments = Family("logprobe_spool_segments", "gauge", "Segments waiting in spool.")
    segments.add(waiting["segments"])
    size = Family("logprobe_spool_bytes", "gauge", "Bytes waiting in spool.", "bytes")
    size.add(waiting["bytes"])
    aside = Family("logprobe_quarantined_files", "gauge", "Files in quarantine because they cannot be trusted.")
    aside.add(quarantined)
    held = Family("logprobe_stuck_files", "gauge", "Files in the spool that cannot be read now; each is retried.")
    held.add(stuck)
    return [lag, segments, size, aside, held]


def _of_jobs(jobs: Sequence[Job]) -> list[Family]:
    runs = Family("logprobe_job_runs", "counter", "Successful runs of the service's jobs.")
    failures = Family("logprobe_job_failures", "counter", "Failed runs of the service's jobs.")
    since = Family("logprobe_job_success_age_seconds", "gauge", "Time since the last success of a job.", "seconds")
    for job in jobs:
        account = job.account()
        runs.add(account.runs, job=job.name)
        failures.add(account.failures, job=job.name)
        since.add(job.unwell_seconds(), job=job.name)
    return [runs, failures, since]


class Family(Metric):
    """Metric whose samples differ only in their labels. `name`: name that ends in the unit, if any."""

    def __init__(self, name: str, kind: Literal["gauge", "counter", "stateset"], words: str, unit: str = "") -> None:
        super().__init__(name, words, kind, unit)
        self._sample_name = f"{name}_total" if kind == "counter" else name

    def add(self, value: float | None, **labels: str) -> None:
        """Add a sample, unless the value is unknown."""
        if value is not None:
            self.add_sample(self._sample_name, {name: _plain(text) for name, text in labels.items()}, value)


@dataclass(frozen=True, slots=True)
class _Scrape:
    """Collector of families, with the interface of prometheus_client."""

    families: Iterable[Family]

    def collect(self) -> Iterator[Family]:
        yield from self.families


def states(family: Family, state: str, names: Iterable[str], **labels: str) -> None:
    """Add a state set with 1 for the present state and 0 for the others."""
    for name in names:
        family.add(float(name == state), **labels, **{family.name: name})


def render(families: Iterable[Family]) -> str:
    """Return the exposition with its end mark, including families without samples."""
    return str(generate_latest(_Scrape(families)).decode())  # type: ignore[no-untyped-call]


def _plain(text: str) -> str:
    """Return `text` with ``?`` for lone surrogates, which UTF-8 cannot encode."""
    return text.encode(errors="replace").decode()
