"""Small files that mean a lot: each is refused, or costs only its own line, by limits that it cannot set itself."""

import json
import os
import subprocess
import sys
import zipfile
from hashlib import sha256

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from importing_files import TOKENS, generic_row, write_lines

from logprobe.app.cli import main
from logprobe.collectors.spool.schema import SCHEMA_VERSION, SCHEMAS

MIB = 1 << 20
# So that a test needs no gigabytes: what is tested is that the limit holds, whatever it is.
SMALL = "LOGPROBE_LIMITS", "import_memory_gib=1, import_unit_mib=2,import_free_mib=8"


@pytest.fixture
def said_of(tmp_path, monkeypatch, capsys):
    """The command: its exit code, and what it said."""
    monkeypatch.setenv(*SMALL)

    def command(*arguments):
        code = main(["import", *map(str, arguments), "--home", str(tmp_path / "home")])
        return code, "".join(capsys.readouterr())

    return command


def in_a_process(folder, *arguments):
    """Likewise, where memory is what is limited."""
    command = [sys.executable, "-m", "logprobe.app.cli", "import", *map(str, arguments), "--home", str(folder / "home")]
    settings = os.environ | dict([SMALL])
    done = subprocess.run(command, timeout=200, env=settings, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


def bundle(path, members, compression=zipfile.ZIP_STORED):
    files = {name: {"sha256": sha256(data).hexdigest(), "bytes": len(data), "rows": 1} for name, data in members}
    manifest = {"format": 1, "schema": SCHEMA_VERSION, "run": "r", "logprobe": "0", "files": files, "left_out": {}}
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name, data in members:
            archive.writestr(name, data)
        archive.writestr("MANIFEST.json", json.dumps(manifest))


def repeated_rows(path, rows=300, size=MIB):
    """Parquet that holds one text and says so many times: a few kilobytes."""
    schema = SCHEMAS["training"]
    text = pa.array(["x" * size])
    repeat = pa.DictionaryArray.from_arrays(pa.array([0] * rows, pa.int32()), text)
    tokens = pa.array([TOKENS] * rows, schema.field("token_ids").type)
    table = pa.table({"step": pa.array([1] * rows, pa.int64()), "sample_id": repeat, "token_ids": tokens})
    pq.write_table(table, path, compression="zstd", dictionary_pagesize_limit=8 * MIB)
    assert path.stat().st_size < 64 << 10


def test_bundles_that_are_larger_than_they_look_are_refused(tmp_path, said_of):
    packed, repeats, listed = (tmp_path / f"{name}.logprobe" for name in ("packed", "repeats", "listed"))
    bundle(packed, [("records/training.parquet", bytes(64 * MIB))], zipfile.ZIP_DEFLATED)
    assert packed.stat().st_size < MIB  # a thousandth
    repeated_rows(tmp_path / "t.parquet")
    bundle(repeats, [("records/training.parquet", (tmp_path / "t.parquet").read_bytes())])
    with zipfile.ZipFile(listed, "w") as archive:
        for number in range(20_000):
            archive.writestr(f"{number:040}", b"")
    for path, words in (
        (packed, "MANIFEST.json is compressed, which bundles never are"),
        (repeats, "expands to more than 8,388,608"),
        (listed, "its table of contents is too large"),
    ):
        code, said = said_of(path)
        assert code == 1
        assert words in said
        assert ("LOGPROBE_LIMITS=import_expansion=" in said) is (path is repeats)
    held = sum(file.stat().st_size for file in (tmp_path / "home").rglob("*") if file.is_file())
    assert held < 32 * MIB


def test_what_needs_more_memory_than_allowed(tmp_path):
    repeated_rows(tmp_path / "t.parquet", rows=256, size=8 * MIB)  # 2 GiB in one batch
    sample = {"tokens": torch.zeros(1, dtype=torch.int32).expand(2 * 10**8), "response_length": 3}  # without strides
    torch.save({"rollout_id": 1, "samples": [sample]}, tmp_path / "rollout_1.pt")
    assert (tmp_path / "rollout_1.pt").stat().st_size < 4096
    for name in ("t.parquet", "rollout_1.pt"):
        code, said = in_a_process(tmp_path, tmp_path / name, "--run", "r")
        assert code == 1
        assert "reading it took more memory than allowed" in said
        assert "LOGPROBE_LIMITS=import_memory_gib=" in said


def test_a_line_that_never_ends_costs_itself(tmp_path, said_of):
    write_lines(tmp_path / "in.jsonl", [generic_row(1, "a")])
    with (tmp_path / "in.jsonl").open("a") as file:
        file.write('{"x": "' + "y" * (5 * MIB) + '"}\n' + json.dumps(generic_row(1, "b")) + "\n")
    code, said = said_of(tmp_path / "in.jsonl", "--run", "r", "--json")
    assert code == 0, said
    report = json.loads(said)
    assert (report["rows"], report["bad_units"]) == ({"training": 2}, 1)
    assert "one line, row or record of an imported file is 2 MiB" in report["bad"][0]


def test_modules_beside_a_download_are_not_run(tmp_path):
    """The command takes its modules from where logprobe is installed, not from the folder that somebody is in."""
    download = tmp_path / "download"
    write_lines(download / "in.jsonl", [generic_row(1, "a")])
    for name in ("json", "pickle", "pyarrow", "resource"):
        (download / f"{name}.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\nraise SystemExit('{name}')\n")
    command = [sys.executable, "-P", "-m", "logprobe.app.cli", "import", "in.jsonl", "--run", "r"]
    done = subprocess.run(
        [*command, "--home", str(tmp_path / "home")],
        cwd=download,
        check=False,
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr
    assert not (tmp_path / "ran").exists()


def test_a_limit_that_is_no_number_is_said(tmp_path, said_of, monkeypatch):
    write_lines(tmp_path / "in.jsonl", [generic_row(1, "a")])
    monkeypatch.setenv("LOGPROBE_LIMITS", "import_memory_gib=lots")
    code, said = said_of(tmp_path / "in.jsonl", "--run", "r")
    assert code == 1
    assert "LOGPROBE_LIMITS: import_memory_gib='lots' is invalid; write a whole number above 0" in said
