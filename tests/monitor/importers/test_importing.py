"""Imports: every format becomes the numbers it should, nothing comes twice, nothing is lost, bad lines cost only themselves."""

import json
import os
import shutil
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from importing_files import (
    event_file,
    generic_row,
    import_until_killed,
    k3,
    nemo_row,
    open_instruct_row,
    prime_row,
    slime_rollout,
    slime_training,
    write_lines,
)

from logprobe.app.cli import main
from logprobe.monitor.importers import importing
from logprobe.monitor.importers.importing import Batch, after, prepare
from logprobe.monitor.importers.reading import Reading
from logprobe.monitor.importers.source import EarlierPiece, Wanted
from logprobe.monitor.importers.tensorboard import masked_crc
from logprobe.monitor.reader import open_reader

DATA = Path(__file__).parents[2] / "data"


def import_(home, form, path, capsys, run="r"):
    code = main(["import", form, str(path), "--run", run, "--home", str(home), "--json"])
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


def test_the_generic_schema_from_jsonl_and_parquet(tmp_path, capsys):
    found = [generic_row(step, f"{step}-{i}") for step in (1, 2) for i in range(3)]
    write_lines(tmp_path / "in.jsonl", found)
    report = import_(tmp_path / "a", "jsonl", tmp_path / "in.jsonl", capsys)
    assert (report["rows"], report["bad_units"]) == ({"training": 6}, 0)
    check_tokens(tmp_path / "a", (1, 2), 3)
    table = pa.Table.from_pylist(found)
    pq.write_table(table, tmp_path / "in.parquet")  # tags: a struct
    import_(tmp_path / "b", "parquet", tmp_path / "in.parquet", capsys)
    check_tokens(tmp_path / "b", (1, 2), 3)


def test_nemo_rl(tmp_path, capsys):
    for step in (1, 10, 2):
        write_lines(tmp_path / f"logs/exp_001/train_data_step{step}.jsonl", [nemo_row(i) for i in range(2)])
    import_(tmp_path / "home", "nemo-rl", tmp_path / "logs", capsys)
    check_tokens(tmp_path / "home", (1, 2, 10), 2)
    assert rows(tmp_path / "home", "SELECT DISTINCT n_total, n_expected, reward FROM training_sequences") == [
        {"n_total": 5, "n_expected": 3, "reward": 1.0}
    ]


def test_nemo_rl_with_dynamic_sampling_has_the_rewards_of_what_is_trained_on(tmp_path, capsys):
    """`rewards` are of all samples that were drawn, and of others than those of these lines."""
    line = nemo_row(0) | {"rewards": [0.0], "filtered_rewards": [0.25]}
    write_lines(tmp_path / "train_data_step1.jsonl", [line])
    import_(tmp_path / "home", "nemo-rl", tmp_path, capsys)
    assert rows(tmp_path / "home", "SELECT reward FROM training_sequences") == [{"reward": 0.25}]


def test_w_and_b_history_of_a_trainer_has_the_steps_that_it_states(tmp_path, capsys):
    lines = [{"_step": 9 * step, "train/global_step": step, "train/loss": 0.5} for step in (1, 2, 3)]
    write_lines(tmp_path / "history.jsonl", lines)
    import_(tmp_path / "home", "scalars", tmp_path, capsys)
    found = rows(tmp_path / "home", "SELECT step, name FROM scalars ORDER BY step")
    assert found == [{"step": step, "name": "train/loss"} for step in (1, 2, 3)]


def test_prime_rl(tmp_path, capsys):
    for step in (0, 1):
        write_lines(tmp_path / f"token_exports/step_{step}/rank_0.jsonl", [prime_row(step, i) for i in range(2)])
    import_(tmp_path / "home", "prime-rl", tmp_path, capsys)
    check_tokens(tmp_path / "home", (0, 1), 2)


def test_slime_joins_its_two_dumps(tmp_path, capsys):
    torch.save(slime_rollout(3, 2), tmp_path / "rollout_3.pt")
    torch.save(slime_training(3, 2, torch), tmp_path / "train_3_0.pt")
    import_(tmp_path / "home", "slime", tmp_path, capsys)
    check_tokens(tmp_path / "home", (3,), 2)
    assert rows(tmp_path / "home", "SELECT DISTINCT rollout_source FROM training_sequences") == [
        {"rollout_source": "joined"}
    ]


def test_slimes_second_format(tmp_path, capsys):
    """A list of samples with the ranks' own rewards beside it, as slime writes since August 2026."""
    dump = torch.load(DATA / "slime_train_2.pt", weights_only=True)
    shutil.copy(DATA / "slime_train_2.pt", tmp_path / "train_5_0.pt")
    assert import_(tmp_path / "home", "slime", tmp_path, capsys)["rows"] == {"training": 4}
    d = torch.cat([(s["log_probs"] - s["rollout_log_probs"])[s["loss_masks"].bool()] for s in dump["samples"]]).double()
    assert backend_k3(tmp_path / "home") == {5: pytest.approx(float((d.expm1() - d).mean()), rel=1e-6)}
    found = rows(tmp_path / "home", "SELECT sample_id, rank, reward FROM sequences ORDER BY sample_id")
    assert [(row["sample_id"], row["rank"], row["reward"]) for row in found] == [
        ("10", 0, 1.0), ("11", 1, 0.0), ("12", 0, 0.5), ("13", 1, 0.25),
    ]  # fmt: skip


def test_a_slime_dump_of_the_future_is_refused_by_its_number(tmp_path, capsys):
    torch.save({"format_version": 3, "rollout_id": 1, "samples": []}, tmp_path / "train_1_0.pt")
    assert "format_version 3" in import_(tmp_path / "home", "slime", tmp_path, capsys)


def test_prime_rl_tokens_of_cross_entropy_are_no_samples_of_the_policy(tmp_path, capsys):
    """They have no sampling log-prob: counting them as a gap would find a fault in a healthy run."""
    place = tmp_path / "token_exports/step_3"
    place.mkdir(parents=True)
    shutil.copy(DATA / "prime_rl_mixed.jsonl", place / "rank_0.jsonl")
    import_(tmp_path / "home", "prime-rl", tmp_path, capsys)
    first = json.loads((DATA / "prime_rl_mixed.jsonl").read_text().splitlines()[0])
    theirs = [value for value, flag in zip(first["mismatch_kl"], first["loss_mask"], strict=True) if flag]
    assert backend_k3(tmp_path / "home") == {3: pytest.approx(sum(theirs) / len(theirs), abs=1e-6)}


def test_a_bare_log_history(tmp_path, capsys):
    (tmp_path / "log_history.json").write_text(json.dumps([{"step": 1, "loss": 0.5}, {"step": 2, "loss": 0.25}]))
    import_(tmp_path / "home", "scalars", tmp_path / "log_history.json", capsys)
    found = rows(tmp_path / "home", "SELECT step, value FROM scalars WHERE name = 'loss' ORDER BY step")
    assert [(row["step"], row["value"]) for row in found] == [(1, 0.5), (2, 0.25)]


class Harmful:
    def __reduce__(self):
        return (os.system, ("true",))


def test_a_pickle_with_code_is_refused(tmp_path, capsys):
    torch.save({"rollout_id": 1, "samples": [Harmful()]}, tmp_path / "rollout_1.pt")
    error = import_(tmp_path / "home", "slime", tmp_path / "rollout_1.pt", capsys)
    assert "rollout_1.pt: rejected, because loading it would run code" in error


def test_open_instruct_has_the_sampled_side_only(tmp_path, capsys):
    write_lines(tmp_path / "run_rollouts_000000.jsonl", [open_instruct_row(1, i) for i in range(4)])
    import_(tmp_path / "home", "open-instruct", tmp_path, capsys)
    assert rows(tmp_path / "home", "SELECT count(*) AS n, avg(reward) AS reward FROM sequences") == [
        {"n": 4, "reward": 1.0}
    ]
    assert backend_k3(tmp_path / "home") in ({}, {1: None})  # unknown, never 0


SCALARS = {
    "verl.jsonl": [{"step": 1, "data": {"loss": 0.5}}, {"step": 2, "data": {"loss": 0.25}}],
    "logging.jsonl": [{"loss": 0.5, "global_step/max_steps": "1/9", "elapsed_time": "3s"}, {"loss": 0.25, "global_step/max_steps": "2/9"}],
    "wandb.jsonl": [{"_step": 1, "loss": 0.5, "_timestamp": 1.7e9}, {"_step": 2, "loss": 0.25, "_timestamp": 1.7e9}],
}  # fmt: skip


def losses(home):
    return rows(home, "SELECT step, value FROM scalars WHERE name = 'loss' ORDER BY step")


EXPECTED = [{"step": 1, "value": 0.5}, {"step": 2, "value": 0.25}]


@pytest.mark.parametrize("name", SCALARS)
def test_scalar_logs(tmp_path, capsys, name):
    write_lines(tmp_path / name, SCALARS[name])
    import_(tmp_path / "home", "scalars", tmp_path / name, capsys)
    assert losses(tmp_path / "home") == EXPECTED


def test_trainer_state_that_grows_and_csv_and_event_files(tmp_path, capsys):
    state = tmp_path / "trainer_state.json"
    for entries in (1, 2):  # as a later checkpoint has it
        history = [{"step": 1, "loss": 0.5, "epoch": 0.1}, {"step": 2, "loss": 0.25, "epoch": 0.2}][:entries]
        state.write_text(json.dumps({"global_step": entries, "log_history": history}))
        report = import_(tmp_path / "state", "scalars", state, capsys)
    assert (losses(tmp_path / "state"), report["units"], report["known"]) == (EXPECTED, 1, 1)
    (tmp_path / "w.csv").write_text('"Step","loss","loss__MIN","note"\n"1","0.5","0.5","x"\n"2","0.25","0.25",""\n')
    import_(tmp_path / "csv", "scalars", tmp_path / "w.csv", capsys)
    assert losses(tmp_path / "csv") == EXPECTED
    event_file(tmp_path / "events.out.tfevents.1.host", [(1, "loss", 0.5), (2, "loss", 0.25)], masked_crc)
    import_(tmp_path / "tb", "tensorboard", tmp_path, capsys)
    assert losses(tmp_path / "tb") == EXPECTED


def test_the_console_of_verl_among_other_output(tmp_path, capsys):
    lines = [
        "loading shards: 100% - done",
        "\x1b[36m(TaskRunner pid=7)\x1b[0m step:1 - loss:0.500 - actor/k3:np.float64(1e-05) - timing:inf - note:text",
        "(TaskRunner pid=7) something else at step:1",
        "step:2 - loss:0.250 - actor/k3:2e-05",
    ]
    path = tmp_path / "train.log"
    path.write_text("\n".join([*lines, "step:3 - loss:0.1"]))  # the last line is still being written
    report = import_(tmp_path / "home", "scalars", path, capsys)
    assert (report["units"], report["bad_units"]) == (2, 0)
    assert losses(tmp_path / "home") == EXPECTED
    assert rows(tmp_path / "home", "SELECT value FROM scalars WHERE name = 'actor/k3' ORDER BY step") == [
        {"value": 1e-05},
        {"value": 2e-05},
    ]
    assert not rows(tmp_path / "home", "SELECT 1 FROM scalars WHERE name = 'note'")


def test_crc_32c_of_the_standard():
    crc = masked_crc(b"123456789") - 0xA282EAD8 & 0xFFFFFFFF
    assert (crc << 15 | crc >> 17) & 0xFFFFFFFF == 0xE3069283  # RFC 3720, appendix B.4: CRC-32C's check value


def test_bad_lines_cost_only_themselves(tmp_path, capsys):
    path = tmp_path / "in.jsonl"
    bad = [
        "{",
        "[]",
        json.dumps({"step": 1}),
        json.dumps({**generic_row(1, "x"), "mask": [1]}),
        json.dumps({**generic_row(1, "y"), "step": "a"}),
    ]
    path.write_text("\n".join([json.dumps(generic_row(1, "good")), *bad, json.dumps(generic_row(1, "fine"))]) + "\n")
    report = import_(tmp_path / "home", "jsonl", path, capsys)
    assert (report["rows"], report["bad_units"]) == ({"training": 2}, 5)
    assert [line.split(": ")[0] for line in report["bad"]] == [f"in.jsonl:{n}" for n in (2, 3, 4, 5, 6)]
    assert "mask has 1 values, token_ids has 5" in report["bad"][3]
    assert rows(tmp_path / "home", "SELECT count FROM health_records WHERE event = 'import_bad_rows'") == [{"count": 5}]


def test_a_second_import_adds_nothing_and_a_grown_log_what_is_new(tmp_path, capsys):
    path = tmp_path / "in.jsonl"
    write_lines(path, [generic_row(1, "a"), generic_row(2, "b")])
    import_(tmp_path / "home", "jsonl", path, capsys)
    segments = rows(tmp_path / "home", "SELECT segment_id FROM segments")
    os.utime(path, (1, 1))
    report = import_(tmp_path / "home", "jsonl", path, capsys)
    assert (report["rows"], report["known"]) == ({}, 2)
    assert rows(tmp_path / "home", "SELECT segment_id FROM segments") == segments
    with path.open("a") as file:
        file.write(json.dumps(generic_row(3, "c")) + "\n" + '{"half')
    assert import_(tmp_path / "home", "jsonl", path, capsys)["rows"] == {"training": 1}
    check_tokens(tmp_path / "home", (1, 2, 3), 1)
    write_lines(path, [generic_row(1, "other"), generic_row(2, "b"), generic_row(3, "c")])
    assert "have changed since they were imported" in import_(tmp_path / "home", "jsonl", path, capsys)


@pytest.mark.parametrize("written", [1, 3])  # a marker without its rows; a whole piece and the next marker
def test_killed_in_the_middle_it_goes_on_where_it_stopped(tmp_path, capsys, written):
    path, home = tmp_path / "in.jsonl", tmp_path / "home"
    write_lines(path, [generic_row(1 + i // 200, str(i)) for i in range(600)])
    import_until_killed(home, "jsonl", path, written)
    import_(home, "jsonl", path, capsys)
    check_tokens(home, (1, 2, 3), 200)
    assert import_(home, "jsonl", path, capsys)["rows"] == {}


def test_a_file_of_which_a_worker_returns_a_part_has_the_same_pieces(tmp_path, monkeypatch):
    write_lines(tmp_path / "train_data_step1.jsonl", [nemo_row(i) for i in range(600)])
    pq.write_table(pa.Table.from_pylist([generic_row(1, str(i)) for i in range(600)]), tmp_path / "in.parquet")
    for form, name in (("nemo-rl", "train_data_step1.jsonl"), ("parquet", "in.parquet")):
        wanted = Wanted(tmp_path / name, name, "2026-01-01T00:00:00+00:00")
        (whole,) = prepare(Batch(form, (wanted,), (1,)))
        assert [(piece.start, piece.end, piece.last) for piece in whole.pieces] == [
            (0, 256, False), (256, 512, False), (512, 600, True),
        ]  # fmt: skip
        earlier = (EarlierPiece(256, wanted.time, rows=True), EarlierPiece(256, wanted.time, rows=False))
        with monkeypatch.context() as patched, Reading(form) as own:
            patched.setattr(importing, "FILE_BYTES", 1)
            for asked in (wanted, replace(wanted, earlier=earlier)):
                (part,) = prepare(Batch(form, (asked,), (1,)))
                found = [*part.pieces, *own.pieces(after(asked, part.pieces))]
                assert part.rest
                assert [piece.sha256 for piece in found] == [piece.sha256 for piece in whole.pieces]
                assert [bool(piece.tables) for piece in found] == [True, not asked.earlier, True]
                assert (found[0].tables, found[2].tables) == (whole.pieces[0].tables, whole.pieces[2].tables)


def test_what_comes_before_a_file_that_cannot_be_read_is_imported(tmp_path, capsys):
    for step in (1, 2, 4):
        pq.write_table(pa.Table.from_pylist([generic_row(step, "a")]), tmp_path / f"{step}.parquet")
    (tmp_path / "3.parquet").write_text("none")
    assert "3.parquet: cannot be read as Parquet" in import_(tmp_path / "home", "parquet", tmp_path, capsys)
    (tmp_path / "3.parquet").unlink()
    report = import_(tmp_path / "home", "parquet", tmp_path, capsys)
    assert (report["known"], report["units"]) == (2, 1)


def test_an_imported_run_has_ended(tmp_path, capsys):
    write_lines(tmp_path / "in.jsonl", [generic_row(1, "a")])
    import_(tmp_path / "home", "jsonl", tmp_path / "in.jsonl", capsys)
    main(["status", "r", "--home", str(tmp_path / "home"), "--json"])
    assert json.loads(capsys.readouterr().out)["state"] == "ended"


def test_wrong_usage_says_what_to_do(tmp_path, capsys):
    assert "there are jsonl, parquet, nemo-rl" in import_(tmp_path / "h", "what", tmp_path, capsys)
    assert main(["import", "jsonl", str(tmp_path), "--run=r", f"--home={tmp_path}", "--follow", "--ray=auto"]) == 1
    assert "omit --ray" in capsys.readouterr().err
    assert "does not exist" in import_(tmp_path / "h", "jsonl", tmp_path / "none", capsys)
    assert "no file named *.parquet there" in import_(tmp_path / "h", "parquet", tmp_path, capsys)
