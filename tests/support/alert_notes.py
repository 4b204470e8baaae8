"""A notification that tests of alerts start from."""

from __future__ import annotations

from datetime import UTC, datetime

from logprobe.alerts.notification import Notification

NOTE = Notification(
    key="run/k3/1/firing",
    run="run",
    rule="k3 grows",
    episode="run/k3/1",
    state="firing",
    severity="critical",
    at=datetime(2026, 5, 1, 12, 0, 0, 125000, tzinfo=UTC),
    summary="K3 of backend is 26 times its baseline",
    step=140,
    level="critical",
    metric="backend.k3_kl",
    value=0.031,
    unit="nat",
    since_step=118,
    changes=("weight sync 14",),
)
