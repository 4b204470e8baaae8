"""Imports: every kind of file becomes the numbers it should, nothing comes twice, nothing is lost, bad records cost only themselves."""

import json
import os
import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from importing_files import (
    ROLLOUT,
    TOKENS,
    TRAINER,
    generic_row,
    k3,
    nemo_row,
    open_instruct_row,
    prime_row,
    slime_rollout,
    slime_training,
    write_lines,
)
from store_work import bring_in

from logprobe.app.cli import main
from logprobe.collectors.errors import ConfigurationError
from logprobe.collectors.recorder.recorder import Recorder
from logprobe.collectors.spool.segments import SpoolWriter
from logprobe.monitor import queries
from logprobe.monitor.exporters.bundle import export_bundle
from logprobe.monitor.home import Home
from logprobe.monitor.importers import importing
from logprobe.monitor.importers.importing import Importer, files_of
from logprobe.monitor.reader import open_reader
from logprobe.monitor.store.store import Store

DATA = Path(__file__).parents[2] / "data"
RUN = "r"


def import_(home, path, capsys, *more):
    code = main(["import", str(path), *more, "--run", RUN, "--home", str(home), "--json"])
    captured = capsys.readouterr()
    return json.loads(captured.out) if code == 0 else captured.err


def rows(home, sql):
    with open_reader(home) as reader:
        return reader.query(sql).to_pylist()


def backend_k3(home):
    found = rows(home, "SELECT step, value FROM metrics WHERE metric = 'backend.k3_kl' ORDER BY step")
    return {row["step"]: row["value"] for row in found}


def check_tokens(home, steps, count):
    sequences = rows(
        home, "SELECT step, count(*) AS n, count(DISTINCT sample_id) AS ids FROM sequences GROUP BY step ORDER BY step"
    )
    assert sequences == [{"step": step, "n": count, "ids": count} for step in steps]
    assert backend_k3(home) == pytest.approx(dict.fromkeys(steps, k3()), rel=1e-5)


def lines(rows_of_step, name):
    """A writer of JSON lines: steps 1 and 2, 300 sequences each, so that a file has more than one piece."""

    def write(folder):
        for step in (1, 2):
            write_lines(folder / name.format(step=step), [rows_of_step(step, index) for index in range(300)])

    return write


def ours(folder):
    write_lines(folder / "in.jsonl", [generic_row(step, f"{step}-{i}") for step in (1, 2) for i in range(300)])


def parquet(folder):
    found = [generic_row(step, f"{step}-{i}") for step in (1, 2) for i in range(300)]
    pq.write_table(pa.Table.from_pylist(found), folder / "in.parquet")  # tags: a struct


def slime(folder):
    for step in (1, 2):
        for name, document in (
            ("rollout_{}.pt", slime_rollout(step, 300)),
            ("train_{}_0.pt", slime_training(step, 300, torch)),
        ):
            for sample in document.get("samples", ()):
                sample["index"] += step * 300
            if "rollout_data" in document:
                document["rollout_data"]["sample_indices"] = [step * 300 + index for index in range(300)]
            torch.save(document, folder / name.format(step))


def bundle(folder):
    source = folder / "source"
    source.mkdir()
    ours(source)
    with Recorder(folder / "there", RUN) as recorder:
        recorder.config({"dtype": "bfloat16"}, kind="trainer_config")
        recorder.weights(1, step=1)
        recorder.step(1, loss=0.5)
    with Store.open(Home(folder / "there")) as store:
        bring(store, source)
        export_bundle(store, RUN, folder / "run.logprobe", version="0")
    shutil.rmtree(source)
    shutil.rmtree(folder / "there")


def trl(step, index):
    row = {"step": step, "sample_id": f"{step}-{index}", "completion_ids": TOKENS[2:], "completion_mask": [1, 1, 1]}
    return row | {"sampling_per_token_logps": ROLLOUT[2:], "old_per_token_logps": TRAINER[2:]}


def verl(step, index):
    row = {"step": step, "sample_id": f"{step}-{index}", "responses": TOKENS, "response_mask": [0, 0, 1, 1, 1]}
    return row | {"rollout_log_probs": ROLLOUT, "old_log_probs": TRAINER, "uid": "p"}


KINDS = {
    "jsonl": ours,
    "parquet": parquet,
    "nemo-rl": lines(lambda _, index: nemo_row(index), "exp_001/train_data_step{step}.jsonl"),
    "prime-rl": lines(prime_row, "token_exports/step_{step}/rank_0.jsonl"),
    "open-instruct": lines(open_instruct_row, "run_rollouts_{step:06}.jsonl"),
    "slime": slime,
    "trl": lines(trl, "{step}.jsonl"),
    "verl": lines(verl, "{step}.jsonl"),
    "bundle": bundle,
}


class Killed(BaseException):
    """Ends an import where kill -9 would."""


def bring(store, folder, writes=None):
    """Import a folder, until so many segments are written; return the report."""
    left = writes

    class Counted(SpoolWriter):  # recorders of other tests may write meanwhile
        def write(self, kind, table):
            nonlocal left
            if left == 0:
                raise Killed
            left = None if left is None else left - 1
            return super().write(kind, table)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(importing, "SpoolWriter", Counted)
        bring_in(store)
        importer = Importer(store.home, RUN, store)
        try:
            for path in files_of([folder], without=store.home.path).files:
                importer.add(path)
            importer.finish()
        except Killed:
            pass
        assert bring_in(store) == []  # what cannot be read now
    return importer.report


def content(store):
    """Everything that an import leaves: its segments with their checksums, and the metrics."""
    segments = store.query("SELECT segment_id FROM segments ORDER BY segment_id")["segment_id"].to_pylist()
    return segments, store.query("SELECT step, metric, value FROM step_metrics ORDER BY ALL").to_pylist()


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_of_file_once_however_often_it_is_imported_and_killed(tmp_path, kind):
    """The numbers are those of the formula; a second import, and one after a kill at any segment, changes no bit of them."""
    folder = tmp_path / "files"
    folder.mkdir()
    KINDS[kind](folder)
    with Store.open(Home(tmp_path / "once")) as store:
        report = bring(store, folder)
        expected = content(store)
        more = {"bundle": {"step": 1, "config": 1, "weights": 1}, "slime": {"rollout": 600}}.get(kind, {})
        assert {"training": 600} | more == {name: n for name, n in report.rows.items() if name != "health"}
        assert ("health" in report.rows) == (kind == "bundle")
        again = bring(store, folder)
        assert (again.rows, again.known) == ({}, sum(report.rows.values()))
        assert content(store) == expected
        summed = store.query("SELECT step, sequences FROM step_summaries ORDER BY step").to_pylist()
    segments, metrics = expected
    k3s = {row["step"]: row["value"] for row in metrics if row["metric"] == "backend.k3_kl"}
    assert k3s == {1: pytest.approx(k3(), rel=1e-5), 2: pytest.approx(k3(), rel=1e-5)} or kind == "open-instruct"
    assert summed == [{"step": 1, "sequences": 300}, {"step": 2, "sequences": 300}]
    for writes in {"slime": {1, 2, len(segments) - 1}, "jsonl": {1}, "bundle": {len(segments) // 2}}.get(kind, ()):
        with Store.open(Home(tmp_path / f"killed-{writes}")) as store:
            bring(store, folder, writes)
            assert len(content(store)[0]) == writes, queries.quarantine_list(store, run=None).to_pylist()
            bring(store, folder)
            assert content(store) == expected


def test_a_grown_file_adds_what_is_new_and_a_changed_one_is_refused(tmp_path, capsys):
    path, home = tmp_path / "in.jsonl", tmp_path / "home"
    write_lines(path, [generic_row(1, "a"), generic_row(2, "b")])
    import_(home, path, capsys)
    for step in (3, 4):
        with path.open("a") as file:
            file.write(("" if step == 3 else ' half"}\n') + json.dumps(generic_row(step, "c")) + "\n" + '{"half')
        report = import_(home, path, capsys)
        assert (report["rows"], report["known"], report["bad_units"]) == ({"training": 1}, step - 1, step - 3)
    check_tokens(home, (1, 2, 3, 4), 1)
    assert rows(home, "SELECT count FROM health_records WHERE event = 'import_bad_rows'") == [{"count": 1}]
    good = path.read_text()
    for kept in ([generic_row(1, "a", shift=0.5), generic_row(2, "b")], [generic_row(1, "a")]):
        write_lines(path, kept)
        assert "begins like a file that was imported into 'r'" in import_(home, path, capsys)
    path.write_text(good)
    assert import_(home, path, capsys)["rows"] == {}
    check_tokens(home, (1, 2, 3, 4), 1)


def test_a_training_that_resumed_and_wrote_a_step_again_is_never_mixed_with_its_first_attempt(tmp_path, capsys):
    """NeMo-RL begins a new folder; the attempt that is imported first counts."""
    first = [nemo_row(0), nemo_row(1)]
    second = [row | {"prev_logprobs": [[*ROLLOUT, 0, 0]]} for row in first]
    for attempt, step, kept in ((1, 1, first), (1, 2, first), (2, 2, second), (2, 3, second)):
        write_lines(tmp_path / f"exp_00{attempt}/train_data_step{step}.jsonl", kept)
    assert import_(tmp_path / "home", tmp_path / "exp_002", capsys)["rows"] == {"training": 4}
    said = import_(tmp_path / "home", tmp_path, capsys)
    assert said.count("begins like") == 1
    assert "exp_001/train_data_step2.jsonl begins like a file that was imported into 'r'" in said
    assert backend_k3(tmp_path / "home") == {1: pytest.approx(k3(), rel=1e-5), 2: 0.0, 3: 0.0}
    assert "exp_002/train_data_step2.jsonl begins like" in import_(tmp_path / "at once", tmp_path, capsys)
    assert backend_k3(tmp_path / "at once") == pytest.approx({1: k3(), 2: k3(), 3: 0.0}, rel=1e-5)


def test_files_that_begin_alike_or_go_back(tmp_path, capsys):
    """Shards of several ranks are all taken; of an evaluation, or of steps that go back, it is said."""
    unnamed = {key: value for key, value in generic_row(1, "").items() if key != "sample_id"}
    for rank in (0, 1):
        write_lines(tmp_path / f"rank_{rank}/data.jsonl", [unnamed | {"rank": rank}] * 2)
    write_lines(tmp_path / "rank_0/data.csv", [])
    assert main(["import", str(tmp_path), "--run", RUN, "--home", str(tmp_path / "home")]) == 0
    assert "4 training added to r from 2 files" in (said := capsys.readouterr().out)
    assert "files not read: 1 .csv" in said
    check_tokens(tmp_path / "home", (1,), 4)

    rows_ = [
        generic_row(step, f"{attempt}-{step}") for attempt, step in (("a", 1), ("a", 2), ("a", 3), ("b", 2), ("b", 3))
    ]
    write_lines(tmp_path / "resumed.jsonl", rows_)
    write_lines(
        tmp_path / "ranks.jsonl",
        [generic_row(step, f"c{rank}{step}") | {"rank": rank} for rank in (0, 1) for step in (1, 2)],
    )
    for name, warnings in (
        ("ranks.jsonl", []),
        ("resumed.jsonl", ["resumed.jsonl: record 4 goes back from step 3 to step 2"]),
    ):
        report = import_(tmp_path / "home", tmp_path / name, capsys)
        assert [words.partition(";")[0] for words in report["warnings"]] == warnings
    assert rows(tmp_path / "home", "SELECT severity FROM health_records WHERE event = 'import_steps_back'") == [
        {"severity": "warning"}
    ]

    with Recorder(tmp_path / "recorded", RUN) as recorder:
        assert recorder.training(step=2, sample_ids=["d"], token_ids=[TOKENS], trainer_logprobs=[TRAINER])
    (warning,) = import_(tmp_path / "recorded", tmp_path / "ranks.jsonl", capsys)["warnings"]
    assert warning.startswith("ranks.jsonl: record 2 is of step 2, which 'r' has from a collector; unless the file")

    torch.save(slime_rollout(1, 1), tmp_path / "data_eval_1.pt")
    assert "is an evaluation, whose samples are numbered like those of training" in import_(
        tmp_path / "home", tmp_path / "data_eval_1.pt", capsys
    )


def told(folder):
    """Files of which one thing is told, by run."""
    lines = {
        "dynamic": [
            nemo_row(0) | {"rewards": [0.0], "filtered_rewards": [0.25]}
        ],  # `rewards` are of all that were drawn
        "open-instruct": [open_instruct_row(1, i) for i in range(4)],
        "uncovered": [generic_row(1, "a"), generic_row(1, "b") | {"rollout_logprobs": None}],
    }
    names = {"dynamic": "train_data_step1.jsonl", "open-instruct": "run_rollouts_000000.jsonl", "uncovered": "in.jsonl"}
    for run, found in lines.items():
        write_lines(folder / run / names[run], found)
    os.utime(folder / "uncovered/in.jsonl", (1.7e9, 1.7e9))
    prime = folder / "prime/token_exports/step_3"
    prime.mkdir(parents=True)
    shutil.copy(DATA / "prime_rl_mixed.jsonl", prime / "rank_0.jsonl")
    (folder / "slime").mkdir()
    shutil.copy(DATA / "slime_train_2.pt", folder / "slime")


def test_what_files_tell_of_rewards_times_ranks_and_what_they_lack(tmp_path, capsys):
    home, sources = tmp_path / "home", tmp_path / "sources"
    told(sources)
    for source in sources.iterdir():
        assert main(["import", str(source), "--run", source.name, "--home", str(home)]) == 0
    main(["show", "uncovered", "--home", str(home), "--json"])
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["state"] == "ended"

    def of(run, sql):
        return [tuple(row.values()) for row in rows(home, sql.format(f"WHERE run = '{run}'"))]

    assert of("dynamic", "SELECT reward FROM training_sequences {}") == [(0.25,)]
    assert of("open-instruct", "SELECT count(*), avg(reward) FROM sequences {}") == [(4, 1.0)]
    k3s = "SELECT step, value FROM metrics {} AND metric = 'backend.k3_kl'"
    assert of("open-instruct", k3s) in ([], [(1, None)])  # the sampled side only: unknown, never 0
    assert of("uncovered", "SELECT value FROM metrics {} AND metric = 'backend.coverage'") == [(0.5,)]
    # Records without a time have the file's.
    assert of("uncovered", "SELECT DISTINCT epoch(time) FROM training_sequences {}") == [(1.7e9,)]
    # Tokens of cross-entropy have no sampling log-prob: counting them would find a fault in a healthy run.
    first = json.loads((DATA / "prime_rl_mixed.jsonl").read_text().splitlines()[0])
    theirs = [value for value, flag in zip(first["mismatch_kl"], first["loss_mask"], strict=True) if flag]
    assert of("prime", k3s) == [(3, pytest.approx(sum(theirs) / len(theirs), abs=1e-6))]
    # slime's list of samples with the ranks' own rewards beside it, as it writes since August 2026.
    dump = torch.load(DATA / "slime_train_2.pt", weights_only=True)
    d = torch.cat([(s["log_probs"] - s["rollout_log_probs"])[s["loss_masks"].bool()] for s in dump["samples"]]).double()
    assert of("slime", k3s) == [(5, pytest.approx(float((d.expm1() - d).mean()), rel=1e-6))]
    found = of("slime", "SELECT sample_id, rank, reward FROM sequences {} ORDER BY sample_id")
    assert found == [("10", 0, 1.0), ("11", 1, 0.0), ("12", 0, 0.5), ("13", 1, 0.25)]


class Harmful:
    def __reduce__(self):
        return (os.system, ("true",))


def test_pickles_with_code_and_dumps_of_the_future_are_refused(tmp_path, capsys):
    torch.save({"rollout_id": 1, "samples": [Harmful()]}, tmp_path / "rollout_1.pt")
    torch.save({"format_version": 3, "rollout_id": 1, "samples": []}, tmp_path / "train_1_0.pt")
    for name, words in (
        ("rollout_1.pt", "rollout_1.pt: rejected, because loading it would run code"),
        ("train_1_0.pt", "format_version 3"),
    ):
        assert words in import_(tmp_path / "home", tmp_path / name, capsys)


WITHOUT = {
    "verl.jsonl": ('{"step": 1, "data": {"actor/entropy": 0.5}}\n' * 3, "it has step, data"),
    "train.log": (
        "  0%|     | 0/20\n{'loss': 0.0, 'sampling/sampling_logp_difference/mean': 0.81}\n",
        "(char 3)): '0%| | 0/20'",
    ),
    "trainer_state.json": (json.dumps({"log_history": [{"step": 1, "loss": 0.5}]}, indent=1), "no line was understood"),
    "array.json": (json.dumps([generic_row(1, "a")]), "it is one JSON array; write one record per line"),
    "in.jsonl.gz": ("\x1f\x8b\x08", "it is compressed by gzip; unpack it"),
    "in.jsonl.zst": ("\x28\xb5\x2f\xfd", "it is compressed by zstd; unpack it"),
    "data-00000-of-00001.arrow": ("\xff\xff\xff\xff\n", "it is an Arrow stream; write Parquet"),
    "global_step_1_training_input.pkl": ("\x80\x04\n", "it is a pickle; write Parquet"),
    "utf-16.jsonl": ((json.dumps(generic_row(1, "a")) + "\n").encode("utf-16").decode("latin-1"), "its text is UTF-16"),
    "events.out.tfevents.1": ("\x18\0\0\0\0\0\0\0\xa3\x7f", "it has no complete line"),
    "null.jsonl": (
        json.dumps(generic_row(1, "a") | {"rollout_logprobs": None, "trainer_logprobs": None}),
        "it has step",
    ),
}


def test_a_file_without_log_probs_is_refused_in_one_sentence(tmp_path, capsys):
    remedy = "; import the framework's token files (docs/import-export.md), or record the run (docs/recording.md)\n"
    for name, columns, there in (
        ("completions_00001", ["step", "prompt", "completion"], "(it has step, prompt, completion)"),
        ("none", [], "(it has no row)"),
    ):
        pq.write_table(pa.table({column: ["a"] for column in columns}), tmp_path / f"{name}.parquet")
        assert there in import_(tmp_path / "home", tmp_path / f"{name}.parquet", capsys)
    for name, (content, there) in WITHOUT.items():
        (tmp_path / name).write_text(content, encoding="latin-1")
        said = import_(tmp_path / "home", tmp_path / name, capsys)
        assert said.startswith(f"logprobe: {tmp_path / name} holds no log-probs of tokens (")
        assert there in said
        assert said.endswith(remedy)
    assert rows(tmp_path / "home", "SELECT * FROM segments") == []


def test_what_can_be_imported_is_and_what_cannot_is_named(tmp_path, capsys):
    for step in (1, 2):
        pq.write_table(pa.Table.from_pylist([generic_row(step, "a")]), tmp_path / f"{step}.parquet")
    (tmp_path / "3.parquet").write_text("none")
    write_lines(tmp_path / "4.jsonl", [generic_row(1, "b") | {"token_ids": None}])
    assert main(["import", str(tmp_path), "--run", RUN, "--home", str(tmp_path / "home")]) == 1
    said = capsys.readouterr()
    assert "2 training added to r from 2 files" in said.out
    assert f"{tmp_path}/3.parquet: cannot be read as Parquet" in said.err
    assert f"{tmp_path}/4.jsonl: none of its records can be used (4.jsonl:1: no token_ids; add the column)" in said.err
    check_tokens(tmp_path / "home", (1, 2), 1)


def test_bad_lines_cost_only_themselves(tmp_path, capsys):
    path = tmp_path / "in.jsonl"
    good = generic_row(1, "x")
    bad = {
        "{": "invalid JSON",
        "[]": "not a JSON object",
        "": "an empty line",
        json.dumps({"step": 1}): "no token_ids",
        json.dumps(good | {"mask": [1]}): "mask has 1 values, token_ids has 5",
        json.dumps(good | {"mask": [0, 1, 2, 0, 1]}): "mask: 2 is not allowed; write 0 or 1",
        json.dumps(
            good | {"rollout_logprobs": [[-0.1, -3.0]] * 5}
        ): "rollout_logprobs: not a list with one number per token",
        json.dumps(good | {"step": "a"}): "step: 'a' is not a whole number",
        json.dumps(good | {"step": 1.5}): "step: 1.5 is not a whole number",
        json.dumps(good | {"rank": 1 << 40}): "rank: ",
        json.dumps(good | {"token_ids": [1, 2, None, 4, 5]}): "token_ids: not a list of whole numbers",
        json.dumps(good | {"token_ids": [1, 2, 3, 4, 1 << 33]}): "token_ids: ",
        json.dumps(good | {"trainer_logprobs": ["a"] * 5}): "trainer_logprobs: ",
        json.dumps(good | {"time": 1.7e12}): "time: 1700000000000.0 is not a time; write epoch seconds or ISO 8601",
        json.dumps(good | {"tags": 3}): "tags: 3 is not an object",
        json.dumps(good | {"reward": [1.0]}): "reward: [1.0] is not a number; write one value",
        json.dumps(
            nemo_row(0)
        ): "has the columns of NeMo-RL, the file begins with logprobe, verl or TRL; split the file",
    }
    fine = json.dumps(generic_row(1, "fine") | {"time": "2026-01-01", "reward": None, "tags": [["a", 1]]})
    path.write_text("\n".join([json.dumps(generic_row(1, "good")), *bad, fine]) + "\n")
    report = import_(tmp_path / "home", path, capsys)
    assert (report["rows"], report["bad_units"]) == ({"training": 2}, len(bad))
    for number, (line, why) in enumerate(zip(report["bad"], bad.values(), strict=True), 2):
        assert line.startswith(f"in.jsonl:{number}: {why}")
    assert rows(tmp_path / "home", "SELECT count FROM health_records WHERE event = 'import_bad_rows'") == [
        {"count": len(bad)}
    ]


def test_files_are_taken_in_their_order(tmp_path):
    names = ["a/step_2/r.jsonl", "a/step_10/r.jsonl", "b.pt"]
    for name in (*names, "a/notes.txt", "a/step_3/r.jsonl.gz", "a/step_4/r.jsonl.gz", "a/data_eval_3.pt"):
        write_lines(tmp_path / name, [])
    write_lines(tmp_path / "a/home/raw.parquet", [])
    for name, there in (("loop", tmp_path), ("gone.jsonl", "nowhere")):
        (tmp_path / "a" / name).symlink_to(there)
    found = files_of([tmp_path / "b.pt", tmp_path / "a", tmp_path / "a/step_10/r.jsonl"], without=tmp_path / "a/home")
    assert found.files == [tmp_path / name for name in names]
    others = {".gz": 2, ".txt": 1, "evaluation (eval_N.pt)": 1, "link to a folder": 1, "broken link": 1}
    assert found.left_out == others
    write_lines(tmp_path / "none/r.jsonl.gz", [])
    with pytest.raises(ConfigurationError, match=r"no file there ends in .* \(1 \.gz\); name the files"):
        files_of([tmp_path / "b.pt", tmp_path / "none"], without=tmp_path / "home")


def test_wrong_usage_says_what_to_do(tmp_path, capsys):
    write_lines(tmp_path / "in.jsonl", [generic_row(1, "a")])
    assert "does not exist" in import_(tmp_path / "h", tmp_path / "none", capsys)
    assert main(["import", str(tmp_path / "in.jsonl"), "--home", str(tmp_path / "h")]) == 1
    assert "no run named; pass --run NAME" in capsys.readouterr().err
