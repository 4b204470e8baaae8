"""The chart for notebooks: what the dashboard shows, of a recorded run, with names that stay text."""

from __future__ import annotations

import pytest
from recorded_home import ingest_recorded
from synthetic_run import SyntheticRun

from logprobe.app.notebook import figure
from logprobe.collectors.errors import ServiceUnavailableError, StoreError
from logprobe.collectors.recorder.recorder import Recorder
from logprobe.monitor.reader import FileReader, open_reader

RUN = "a <b>run</b>"


def unanswered(*_: object, **__: object) -> None:
    raise ServiceUnavailableError("nobody answers")


def test_the_figure_has_the_values_of_the_store(tmp_path, monkeypatch) -> None:
    with Recorder(tmp_path / "home", RUN) as recorder:
        SyntheticRun(recorder).record(8)
    ingest_recorded(tmp_path / "home")
    drawn = figure(tmp_path / "home", RUN)
    with open_reader(tmp_path / "home") as reader:
        rows = reader.query(
            f"SELECT step, metrics['backend.k3_kl'] AS k3 FROM steps_of('{RUN}') ORDER BY step"
        ).to_pydict()
    k3 = next(trace for trace in drawn.data if (trace.name or "").startswith("K3, backend"))
    assert (list(k3.x), k3.hoverinfo) == (rows["step"], "x+y+name")
    assert list(k3.y) == rows["k3"]
    assert "<b>run" not in drawn.layout.title.text
    assert "&lt;b&gt;run" in drawn.layout.title.text
    headings = [note.text for note in drawn.layout.annotations]
    assert any("K3" in text and "backend" in text for text in headings)
    assert "not measured" not in drawn.layout.title.text
    assert drawn.layout.paper_bgcolor != figure(tmp_path / "home", RUN, dark=True).layout.paper_bgcolor
    with monkeypatch.context() as patched:
        patched.setattr(FileReader, "read", unanswered)
        with pytest.raises(ServiceUnavailableError, match="stopped responding"):
            figure(tmp_path / "home", RUN)
    with pytest.raises(StoreError, match="no run 'other'"):
        figure(tmp_path / "home", "other")


def test_what_was_recorded_needs_no_ingest_before(tmp_path) -> None:
    """A person in a notebook, without a service."""
    with Recorder(tmp_path / "home", RUN) as recorder:
        SyntheticRun(recorder).record(3)
    drawn = figure(tmp_path / "home", RUN)
    assert list(next(trace for trace in drawn.data if (trace.name or "").startswith("K3, backend")).x) == [0, 1, 2]


def test_rows_without_any_value_are_named(tmp_path) -> None:
    with Recorder(tmp_path / "home", RUN) as recorder:
        SyntheticRun(recorder, full=False).record(2)
    ingest_recorded(tmp_path / "home")
    drawn = figure(tmp_path / "home", RUN)
    assert "Weight lag: not measured, " in drawn.layout.title.text
