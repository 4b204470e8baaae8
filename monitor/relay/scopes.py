"""What readers get whose token is of some runs: stored statements about these runs, with the answers of a home that has
no others.

A run that is not one of theirs is, to them, a name that nothing was recorded under: no answer says whether it exists.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

import pyarrow as pa

from logprobe.collectors.errors import QueryError
from logprobe.monitor.service.flight import Request

# What lists and comparisons of runs read. A statement may be here if all that it reads is of $run or $runs, or if its
# rows name their run.
STATEMENTS: Final = frozenset(
    {
        "app_points",
        "app_runs",
        "app_runs_glance",
        "app_steps",
        "diagnosis_config_changes",
        "diagnosis_configs",
        "diagnosis_weights",
        "growth_changed",
        "growth_setups",
        "growth_states",
        "growth_values",
        "growth_window",
    }
)
_OTHERS: Final = frozenset({"since", "metrics", "first", "last"})  # parameters that name no run
_NOBODY: Final = ""  # no run is called so

Covers = Callable[[str], bool]


def narrowed(request: Request, covers: Covers) -> Request:
    """What is asked of the service instead. Raises `QueryError` for what such readers are not answered."""
    if request.name not in STATEMENTS:
        raise QueryError(
            "this token lists and compares its runs; SQL and everything else needs the token of the service"
        )
    params = request.params if isinstance(request.params, dict) else {}
    unknown = params.keys() - _OTHERS - {"run", "runs"}
    if unknown:  # names that differ in case only are one to DuckDB
        raise QueryError(f"no parameter {min(unknown)!r}")

    def own(run: Any) -> str:
        return run if isinstance(run, str) and covers(run) else _NOBODY

    given = {name: value for name, value in params.items() if name in _OTHERS}
    if "run" in params:
        given["run"] = own(params["run"])
    if "runs" in params:
        runs = params["runs"]
        given["runs"] = [own(run) for run in runs] if isinstance(runs, list) else []
    return replace(request, params=given)


def filtered(rows: pa.Table, covers: Covers) -> pa.Table:
    """Without rows of other runs."""
    if "run" not in rows.column_names:
        return rows
    return rows.filter(pa.array([bool(run) and covers(run) for run in rows["run"].to_pylist()], pa.bool_()))
