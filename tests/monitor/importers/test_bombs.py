"""Small files that mean a lot: each is refused, or costs only its own line, by limits that it cannot set itself."""

import json
import os
import subprocess
import sys
import zipfile
from hashlib import sha256

import pyarrow as pa
import pyarrow.parquet as pq
import torch
from importing_files import TOKENS, generic_row, write_lines

from logprobe.collectors.spool.schema import SCHEMA_VERSION, SCHEMAS

MIB = 1 << 20
# So that a test needs no gigabytes: what is tested is that the limit holds, whatever it is.
SMALL = {"LOGPROBE_LIMITS": "import_memory_gib=1, import_unit_mib=2,import_free_mib=8"}


def logprobe(folder, *arguments, **environment):
    """The command in a process of its own; its exit code, what it said, and the bytes below the home and the temporary folder."""
    scratch = folder / "scratch"
    scratch.mkdir(exist_ok=True)
    command = [sys.executable, "-m", "logprobe.app.cli", *map(str, arguments), "--home", str(folder / "home")]
    settings = {**os.environ, **SMALL, **environment, "TMPDIR": str(scratch)}
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


def test_a_bundle_that_unpacks_to_a_thousand_times_its_size(tmp_path):
    bundle(tmp_path / "b.logprobe", [("records/training.parquet", bytes(64 * MIB))], zipfile.ZIP_DEFLATED)
    assert (tmp_path / "b.logprobe").stat().st_size < MIB
    code, said = logprobe(tmp_path, "import", tmp_path / "b.logprobe")
    assert code == 1
    assert "MANIFEST.json is compressed, which bundles never are" in said


def test_a_bundle_whose_parquet_repeats_one_row(tmp_path):
    repeated_rows(tmp_path / "t.parquet")
    bundle(tmp_path / "b.logprobe", [("records/training.parquet", (tmp_path / "t.parquet").read_bytes())])
    code, said = logprobe(tmp_path, "import", tmp_path / "b.logprobe")
    assert code == 1
    assert "expands to more than 8,388,608" in said
    assert "LOGPROBE_LIMITS=import_expansion=" in said
    held = sum(file.stat().st_size for file in tmp_path.rglob("*") if file.is_file() and "home" in file.parts)
    assert held < 32 * MIB


def test_a_bundle_with_a_table_of_contents_of_its_own_size(tmp_path):
    with zipfile.ZipFile(tmp_path / "b.logprobe", "w") as archive:
        for number in range(20_000):
            archive.writestr(f"{number:040}", b"")
    code, said = logprobe(tmp_path, "import", tmp_path / "b.logprobe")
    assert code == 1
    assert "its table of contents is too large" in said


def test_parquet_that_needs_more_memory_than_allowed(tmp_path):
    repeated_rows(tmp_path / "t.parquet", rows=256, size=8 * MIB)  # 2 GiB in one batch
    code, said = logprobe(tmp_path, "import", tmp_path / "t.parquet", "--run", "r")
    assert code == 1
    assert "reading it took more memory than allowed" in said
    assert "LOGPROBE_LIMITS=import_memory_gib=" in said


def test_a_line_that_never_ends_costs_itself(tmp_path):
    write_lines(tmp_path / "in.jsonl", [generic_row(1, "a")])
    with (tmp_path / "in.jsonl").open("a") as file:
        file.write('{"x": "' + "y" * (5 * MIB) + '"}\n' + json.dumps(generic_row(1, "b")) + "\n")
    code, said = logprobe(tmp_path, "import", tmp_path / "in.jsonl", "--run", "r", "--json")
    assert code == 0, said
    report = json.loads(said)
    assert (report["rows"], report["bad_units"]) == ({"training": 2}, 1)
    assert "one line, row or record of an imported file is 2 MiB" in report["bad"][0]


def test_a_tensor_without_strides(tmp_path):
    sample = {"tokens": torch.zeros(1, dtype=torch.int32).expand(2 * 10**8), "response_length": 3}
    torch.save({"rollout_id": 1, "samples": [sample]}, tmp_path / "rollout_1.pt")
    assert (tmp_path / "rollout_1.pt").stat().st_size < 4096
    code, said = logprobe(tmp_path, "import", tmp_path / "rollout_1.pt", "--run", "r")
    assert code == 1
    assert "reading it took more memory than allowed" in said


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


def test_a_limit_that_is_no_number_is_said(tmp_path):
    write_lines(tmp_path / "in.jsonl", [generic_row(1, "a")])
    arguments = ("import", tmp_path / "in.jsonl", "--run", "r")
    code, said = logprobe(tmp_path, *arguments, LOGPROBE_LIMITS="import_memory_gib=lots")
    assert code == 1
    assert "LOGPROBE_LIMITS: import_memory_gib='lots' is invalid; write a whole number above 0" in said
