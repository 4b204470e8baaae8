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
    metric="k3_kl",
    pair="backend",
    value=0.031,
    unit="nat",
    baseline=0.0012,
    since_step=118,
    doubling_steps=12.5,
    changes=("weight sync 14",),
    labels={"team": "rl"},
    series=((138, 0.02), (139, 0.025), (140, 0.031)),
)
