"""What `sample_data` refuses and makes without an engine; what `record.py` records is judged once it is shipped."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from exporting import export_run


def script(repository: Path, name: str, *arguments: str) -> tuple[int, str]:
    """Exit code and standard error of a script of `sample_data`."""
    command = [sys.executable, str(repository / "sample_data" / name), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=400, check=False)
    return done.returncode, done.stderr


def test_a_run_is_not_recorded_over_another(repository: Path, tmp_path: Path) -> None:
    (tmp_path / "v1-fixed").mkdir()
    code, stderr = script(repository, "record.py", "v1-fixed", "--out", str(tmp_path))
    assert (code, stderr.count("\n")) == (1, 1)
    assert "--overwrite" in stderr


def test_the_load_generator_is_seeded_and_says_what_it_is(repository: Path, tmp_path: Path) -> None:
    runs = []
    for home, seed in ((tmp_path / "a", "1"), (tmp_path / "b", "1")):
        size = ["--steps", "2", "--sequences", "5", "--tokens", "20", "--seed", seed]
        code, stderr = script(repository, "synthetic.py", "--home", str(home), *size)
        assert code == 0, stderr
        runs.append(export_run(home, "synthetic-load", home / "out"))
    first, second = (run.table("training").drop_columns("time") for run in runs)
    assert first.equals(second)
    assert first.num_rows == 10
    assert {dict(tags)["synthetic"] for tags in first["tags"].to_pylist()} == {"yes"}
    assert '"synthetic":true' in runs[0].table("config")["document"].to_pylist()[0].replace(" ", "")
