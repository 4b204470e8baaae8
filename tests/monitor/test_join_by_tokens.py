"""Sequences whose names do not meet: joined by their tokens, one to one, or not at all."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import numpy as np
import pytest
from segments import RUN, at, sampled, trained
from store_work import Fed

from logprobe.app.cli import main
from logprobe.app.doctor import examine

LONG = list(range(100, 112))
OTHER = list(range(300, 312))


def ours(
    name: str, tokens: list[int] = LONG, step: int = 3, time: datetime | None = None, **more: Any
) -> dict[str, Any]:
    t = np.full(len(tokens), -0.5)
    row = trained(name, step, n=len(tokens), received=False, token_ids=tokens, trainer_logprobs=t, **more)
    return row | {"time": time or at(step * 60 + 30)}


def theirs(name: str, tokens: list[int] = LONG, time: datetime | None = None, r: float = -0.75) -> dict[str, Any]:
    row = sampled(name, n=len(tokens), token_ids=tokens, logprobs=np.full(len(tokens), r))
    return row | {"time": time or at(180)}


def joined(fed: Fed) -> dict[str, tuple[str | None, str, float | None]]:
    rows = fed.rows("SELECT sample_id, step, joined_by, rollout_source, sum_d FROM sequences")
    return {f"{r['sample_id']}@{r['step']}": (r["joined_by"], r["rollout_source"], r["sum_d"]) for r in rows}


APART = ("ambiguous", "missing", None)


def test_what_fits_several_is_left_alone_and_counted(fed: Fed, capsys: pytest.CaptureFixture[str]) -> None:
    fed.feed("rollout", theirs("r1"), theirs("r2"), theirs("r3", OTHER))
    fed.feed("training", ours("t1"), ours("t2", OTHER), ours("t3", OTHER))
    assert set(joined(fed).values()) == {APART}
    fed.store.close()
    home = str(fed.store.home.path)
    assert any("all sequences not joined: their tokens fit several" in each.text for each in examine(home))
    main(["show", RUN, "--home", home])
    assert "all sequences not joined: their tokens fit several" in capsys.readouterr().out
