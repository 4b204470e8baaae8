"""`make campaign NAME=package`: wheel and sdist, checked, and the wheel alone installed in an empty environment of every Python that is here.

Prints a line per Python; the exit code is 1 if anything fails. Needs a package index.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
PYTHONS: Final = ("python3.11", "python3.12", "python3.13")
COLLECTORS: Final = {
    "array-api-compat",
    "click",
    "logprobe",
    "numpy",
    "pyarrow",
}  # all that a trainer or an engine installs
_RECORDS: Final = """
from logprobe.collectors import Recorder
from logprobe.collectors.correction import CorrectionConfig
with Recorder("home", "run") as recorder:
    assert recorder.training(step=1, sample_ids=["a"], token_ids=[[1, 2]], trainer_logprobs=[[-1.0, -2.0]])
assert next(__import__("pathlib").Path("home").rglob("*.arrow"))
"""


def main() -> int:
    """Builds into dist/."""
    shutil.rmtree(ROOT / "dist", ignore_errors=True)
    with tempfile.TemporaryDirectory() as folder:
        tools = _environment(sys.executable, Path(folder, "tools"))
        _run(tools, "-m", "pip", "install", "--quiet", "build", "twine")
        _run(tools, "-m", "build", "--outdir", str(ROOT / "dist"), str(ROOT))
        files = sorted(map(str, (ROOT / "dist").iterdir()))
        _run(tools, "-m", "twine", "check", "--strict", *files)
        (wheel,) = (file for file in files if file.endswith(".whl"))
        found = [name for name in PYTHONS if _starts(name)]
        for name in found:
            print(f"{name}: {_installed(name, wheel, Path(folder, name))}")
    missing = sorted(set(PYTHONS) - set(found))
    print(f"built and checked: {', '.join(Path(file).name for file in files)}")
    if missing:
        print(f"not checked, because they are not installed here: {', '.join(missing)}")
    return 0


def _installed(python: str, wheel: str, folder: Path) -> str:
    """Installs the wheel alone and records with it."""
    inside = _environment(python, folder)
    _run(inside, "-m", "pip", "install", "--quiet", wheel)
    listed = subprocess.run([inside, "-m", "pip", "list", "--format=json"], check=True, capture_output=True, text=True)
    packages = {each["name"] for each in json.loads(listed.stdout)} - {"pip", "setuptools"}
    if packages != COLLECTORS:
        raise SystemExit(f"{python}: the wheel installs {', '.join(sorted(packages))}")
    _run(inside, "-c", _RECORDS, cwd=folder)
    _run(str(folder / "bin" / "logprobe"), "doctor", cwd=folder)
    return f"{len(packages) - 1} packages beside logprobe; records, and `logprobe doctor` runs"


def _starts(python: str) -> bool:
    """Some installations put names on the PATH that only print an error."""
    place = shutil.which(python)
    return (
        place is not None
        and subprocess.run([place, "-c", "import venv"], check=False, capture_output=True).returncode == 0
    )


def _environment(python: str, folder: Path) -> str:
    _run(python, "-m", "venv", str(folder))
    return str(folder / "bin" / "python")


def _run(*command: str, cwd: Path | None = None) -> None:
    """Raises `SystemExit` with what the command said."""
    done = subprocess.run(command, check=False, capture_output=True, text=True, cwd=cwd)
    if done.returncode:
        raise SystemExit(f"{' '.join(command[:5])} …\n{done.stdout[-3000:]}{done.stderr[-3000:]}")


if __name__ == "__main__":
    sys.exit(main())
