"""When incidents open and close: the table, and that no order of severities breaks it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from logprobe.alerts.incidents.lifecycle import HEALTHY_STEPS, Standing, advance
from logprobe.monitor.judgement import SEVERITIES

OPEN, FIRST = Standing(2), Standing(1)
LONG = Standing(2, healthy=HEALTHY_STEPS - 5, seen=200)
OVER = Standing(2, open=False)


@pytest.mark.parametrize(
    ("before", "severity", "step", "after", "change"),
    [
        (None, "critical", 7, FIRST, "opened"),
        (None, "critical", None, FIRST, "opened"),
        (None, "warning", 7, None, None),
        (None, "unknown", 7, None, None),
        (None, "ok", 7, None, None),
        *((OVER, severity, 7, OVER, None) for severity in ("warning", "unknown", "ok")),
        (OVER, "critical", 7, Standing(3), "opened"),
        (OPEN, "critical", 7, OPEN, None),
        (LONG, "critical", 204, OPEN, None),
        (LONG, "warning", 204, OPEN, None),
        (LONG, "unknown", 230, Standing(2, healthy=LONG.healthy), None),  # neither for nor against it
        (Standing(2, healthy=LONG.healthy), "ok", 230, Standing(2, healthy=LONG.healthy, seen=230), None),
        (OPEN, "ok", 7, Standing(2, seen=7), None),
        (OPEN, "ok", None, OPEN, None),
        (LONG, "ok", 204, Standing(2, healthy=HEALTHY_STEPS - 1, seen=204), None),
        (LONG, "ok", 205, Standing(2, open=False, healthy=HEALTHY_STEPS, seen=205), "closed"),
        (LONG, "ok", 150, Standing(2, healthy=LONG.healthy, seen=150), None),  # an attempt that began again earlier
    ],
)
def test_the_table(before, severity, step, after, change) -> None:
    assert advance(before, severity, step) == (after, change)


@given(st.lists(st.tuples(st.sampled_from(SEVERITIES), st.integers(0, 60)), max_size=60))
def test_never_open_twice_and_closed_only_after_so_many_healthy_steps(looks) -> None:
    standing, step, opened, healthy = None, 0, 0, 0
    for severity, steps in looks:
        was_open, step = standing is not None and standing.open, step + steps
        standing, change = advance(standing, severity, step)
        healthy = 0 if severity in {"critical", "warning"} else healthy + steps
        if change == "opened":
            assert not was_open
            assert severity == "critical"
            opened += 1
            assert standing.number == opened
        elif change == "closed":
            assert was_open
            assert severity == "ok"
            assert healthy >= HEALTHY_STEPS
        else:
            assert was_open == (standing is not None and standing.open)
