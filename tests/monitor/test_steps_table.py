"""Steps as one wide table: the rows of the view, a column for each metric and scalar under a name of its own."""

from __future__ import annotations

import pytest

from logprobe.monitor.analysis import steps_table as module
from logprobe.monitor.analysis.steps_table import steps_table
from logprobe.monitor.metrics.catalog import KEYS
from logprobe.monitor.store.store import Store

FIXED = ["run", "step", "time", "tokens", "sequences", "correction", "computed_at", "revision"]


def known(table):
    """The columns of numbers in which something is known."""
    return {
        name: table[name].to_pylist()
        for name in table.column_names
        if name not in FIXED and table[name].null_count < table.num_rows
    }


@pytest.mark.parametrize("at_once", [1, 2, 1024])
def test_names_that_collide_stay_apart(store: Store, monkeypatch: pytest.MonkeyPatch, at_once: int) -> None:
    monkeypatch.setattr(module, "_STEPS_AT_ONCE", at_once)
    with store.transaction() as cursor:
        cursor.execute(
            "INSERT INTO step_metrics VALUES ('run', 1, 'backend.k3_kl', 0.5), ('run', 1, 'reward', NULL),"
            " ('run', 4, 'reward', 'nan'), ('run', 4, 'gone', 8.0), ('other', 1, 'reward', 9.0)"
        )
        cursor.execute(
            "INSERT INTO step_summaries (run, step, tokens, sequences, time, computed_at, revision)"
            " VALUES ('run', 1, 10, 2, NULL, now(), 7), ('run', 3, 1, 1, NULL, now(), 8),"
            " ('run', 4, 1, 1, NULL, now(), 9), ('other', 1, 1, 1, NULL, now(), 10)"
        )
        cursor.execute(
            "INSERT INTO all_step_records VALUES ('run', 1, 0, now(), MAP {'loss': 2.0, 'Reward': 3.0, 'step': 4.0, 'a\"b': 5.0}, NULL, NULL),"
            " ('run', 1, 1, now(), MAP {'loss': 9.0}, NULL, NULL), ('run', 2, 0, now(), MAP {'loss': 1.0}, 'tis', NULL),"
            " ('other', 1, 0, now(), MAP {'of another': 1.0}, NULL, NULL)"
        )
    table = steps_table(store, "run")
    own = ["step.Reward", 'a"b', "loss", "step.step"]
    assert table.column_names == [*FIXED, *sorted({*KEYS, "gone"}), *own]
    assert table["step"].to_pylist() == [1, 2, 3, 4]
    assert table["tokens"].to_pylist() == [10, None, 1, 1]
    assert table["correction"].to_pylist() == [None, "tis", None, None]
    shown = known(table)
    assert str(shown.pop("reward")) == "[None, None, None, nan]"
    assert shown == {
        "backend.k3_kl": [0.5, None, None, None],
        "gone": [None, None, None, 8.0],
        "step.Reward": [3.0, None, None, None],
        'a"b': [5.0, None, None, None],
        "loss": [5.5, 1.0, None, None],
        "step.step": [4.0, None, None, None],
    }


def test_scalars_whose_names_differ_after_a_nul_have_columns_of_their_own(store: Store) -> None:
    table = steps_table(store, "nobody")
    assert (table.num_rows, table.column_names) == (0, [*FIXED, *sorted(KEYS)])
    names = ["nul", "nul\0x", "nul\0y", "nul␀x", "\0", ""]
    sql = "INSERT INTO all_step_records (run, step, scalars) VALUES ('r', 1, map_from_entries($entries::STRUCT(k VARCHAR, v DOUBLE)[]))"
    with store.transaction() as cursor:
        cursor.execute(sql, {"entries": [{"k": name, "v": float(place)} for place, name in enumerate(names)]})
    shown = known(steps_table(store, "r"))
    assert shown == {"nul": [0.0], "nul␀x": [1.0], "nul␀y": [2.0], "step.nul␀x": [3.0], "␀": [4.0], "step.": [5.0]}
