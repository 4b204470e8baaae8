"""Exports: tables say what the store says, a bundle becomes the same run elsewhere, a forged one is refused."""

import json
import shutil
import zipfile
from functools import partial

import pyarrow.parquet as pq
import pytest
import torch
from importing_files import slime_rollout, slime_training
from processes import record
from pyarrow import csv
from store_work import bring_in

from logprobe.app.cli import main
from logprobe.collectors.errors import ConfigurationError
from logprobe.collectors.recorder.recorder import Recorder
from logprobe.monitor.exporters import bundle
from logprobe.monitor.exporters.table_files import export_table
from logprobe.monitor.home import Home
from logprobe.monitor.reader import open_reader
from logprobe.monitor.service.deleting import forget
from logprobe.monitor.store.retention import Retention, RetentionPolicy
from logprobe.monitor.store.store import Store

RUN = "r"


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A run with training, rollout, step and health records."""
    folder, source = tmp_path_factory.mktemp("exported"), tmp_path_factory.mktemp("source")
    torch.save(slime_rollout(3, 4), source / "rollout_3.pt")
    torch.save(slime_training(3, 4, torch), source / "train_3_0.pt")
    assert main(["import", str(source), "--run", RUN, "--home", str(folder)]) == 0
    with Recorder(folder, RUN) as recorder:
        assert all(recorder.step(step, loss=0.5) for step in (1, 2, 3))
    assert main(["up", "--once", "--home", str(folder)]) == 0
    return folder


def export(home, path, *more):
    return main(["export", RUN, "--to", str(path), "--home", str(home), *more])


def metrics(home, run=RUN):
    with open_reader(home) as reader:
        table = reader.query(
            "SELECT step, metric, value FROM metrics WHERE run = ? AND value IS NOT NULL ORDER BY ALL", [run]
        )
        return {(row["step"], row["metric"]): row["value"] for row in table.to_pylist()}


def test_tables_by_suffix(home, tmp_path):
    assert [export(home, tmp_path / f"m{suffix}") for suffix in (".parquet", ".csv", ".jsonl")] == [0, 0, 0]
    found = {step: value for (step, metric), value in metrics(home).items() if metric == "backend.k3_kl"}
    known = [found.get(step) for step in (1, 2, 3)]  # unknown where only scalars were logged
    assert pq.read_table(tmp_path / "m.parquet")["backend.k3_kl"].to_pylist() == known
    assert csv.read_csv(tmp_path / "m.csv")["backend.k3_kl"].to_pylist() == known
    lines = [json.loads(line) for line in (tmp_path / "m.jsonl").read_text().splitlines()]
    assert [line["backend.k3_kl"] for line in lines] == known
    export(home, tmp_path / "t.parquet", "--what", "tokens")
    with open_reader(home) as reader:
        assert (
            pq.read_table(tmp_path / "t.parquet").num_rows
            == reader.query("SELECT count(*) AS n FROM tokens")["n"][0].as_py()
        )


def test_a_bundle_becomes_the_same_run_elsewhere_and_only_once(home, tmp_path, capsys):
    bundle = tmp_path / "run.logprobe"
    export(home, bundle)
    other = ["--home", str(tmp_path / "other")]
    assert main(["import", str(bundle), *other]) == 0
    expected, found = metrics(home), metrics(tmp_path / "other")
    assert expected
    assert found == pytest.approx(expected, rel=1e-9)
    capsys.readouterr()
    main(["import", str(bundle), *other, "--json"])
    assert json.loads(capsys.readouterr().out)["rows"] == {}


def test_a_bundle_says_what_it_could_not_take_along(home, tmp_path, capsys):
    poor = tmp_path / "poor"
    shutil.copytree(home, poor)
    with Store.open(Home(poor)) as store:
        sequences = store.query("SELECT count(*) AS n FROM training_sequences")["n"][0].as_py()
        Retention(store, RetentionPolicy(max_bytes=0)).run_once()
        kept = store.query("SELECT count(*) AS n FROM raw_training")["n"][0].as_py()
    assert kept < sequences
    export(poor, tmp_path / "poor.logprobe", "--json")
    manifest = json.loads(capsys.readouterr().out)
    assert manifest["left_out"]["training_sequences"] == sequences - kept


def forged(source, target, change):
    """The bundle with its members changed by `change(name, content)`."""
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(target, "w") as new:
        for name in old.namelist():
            for given, content in change(name, old.read(name)):
                new.writestr(given, content)


def climbing(name, content):
    """A member that would land outside."""
    yield name, content.replace(b'"metrics.parquet"', b'"../../climbed"') if name == "MANIFEST.json" else content
    if name == "metrics.parquet":
        yield "../../climbed", content


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda name, content: [(name, content[:-1] + b"x" if name == "records/training.parquet" else content)], "SHA-256"),
        (lambda name, content: [] if name == "MANIFEST.json" else [(name, content)], "not a logprobe bundle"),
        (lambda name, content: [(name, content.replace(b'"format": 1', b'"format": 99'))], "newer logprobe"),
        (climbing, None),  # what is no record is not opened
    ],
)  # fmt: skip
def test_forged_bundles_are_refused_and_nothing_lands_outside(home, tmp_path, capsys, change, words):
    export(home, tmp_path / "run.logprobe")
    forged(tmp_path / "run.logprobe", tmp_path / "bad.logprobe", change)
    capsys.readouterr()
    code = main(["import", str(tmp_path / "bad.logprobe"), "--home", str(tmp_path / "h")])
    assert code == (0 if words is None else 1)
    assert (words or "") in capsys.readouterr().err
    assert not list(tmp_path.parent.rglob("climbed"))


def test_wrong_usage(home, tmp_path, capsys):
    assert export(home, tmp_path / "x.txt") == 1
    assert "use a name that ends in .parquet" in capsys.readouterr().err
    assert main(["export", "nobody", "--to", str(tmp_path / "x.csv"), "--home", str(home)]) == 1
    assert "no run 'nobody'" in capsys.readouterr().err
    assert not (tmp_path / "x.csv").exists()


class _Meanwhile:
    """A reader; when the statement `name` is asked for the second time, something happens before it is answered."""

    def __init__(self, reader, name, happens):
        self._reader, self._name, self._happens, self._asked = reader, name, happens, 0

    def read(self, name, **parameters):
        if name == self._name:
            self._asked += 1
            if self._asked == 2:
                self._happens()
        return self._reader.read(name, **parameters)

    def __getattr__(self, name):
        return getattr(self._reader, name)


@pytest.mark.parametrize(
    ("name", "what", "again"), [("export_tokens", "t.parquet", False), ("export_training", "b.logprobe", True)]
)
def test_a_run_that_is_deleted_meanwhile_is_not_exported_in_part(tmp_path, name, what, again, monkeypatch):
    monkeypatch.setattr(bundle, "_SEGMENTS", 1)
    home = tmp_path / "home"
    for steps in (range(3), range(3, 6)):
        record(home, RUN, steps=steps)
        with Store.open(Home(home).create()) as store:
            bring_in(store)
    with Store.open(Home(home)) as store:

        def delete():
            forget(store, RUN)
            if again:
                record(home, RUN, steps=range(9))
                bring_in(store)

        reader = _Meanwhile(store, name, delete)
        work = (
            partial(bundle.export_bundle, reader, RUN, tmp_path / what, version="1")
            if what.endswith(".logprobe")
            else partial(export_table, reader, RUN, "tokens", tmp_path / what)
        )
        with pytest.raises(ConfigurationError, match=r"deleted, moved, or lost raw tokens while .*nothing was written"):
            work()
    assert not (tmp_path / what).exists()
    assert not list(tmp_path.glob(".*"))


def test_what_arrives_meanwhile_disturbs_no_export(tmp_path):
    record(tmp_path, RUN, steps=range(3))
    with Store.open(Home(tmp_path).create()) as store:
        bring_in(store)

        def grow():
            record(tmp_path, RUN, steps=range(3, 5))
            bring_in(store)

        rows = export_table(_Meanwhile(store, "export_tokens", grow), RUN, "tokens", tmp_path / "t.parquet")
        assert rows == store.query("SELECT count(*) AS n FROM tokens WHERE step < 3")["n"][0].as_py()
