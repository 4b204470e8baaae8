"""A `vllm serve` on the CPU for TRL's programs, and weights for it through a folder: TRL sends them by NCCL, which needs GPUs."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any


@contextlib.contextmanager
def server(model: str, folder: Path) -> Iterator[str]:
    """A `vllm serve` of its own; → its address."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    options = f"--port {port} --host 127.0.0.1 --dtype float32 --enforce-eager --max-model-len 128 --block-size 32"
    command = [sys.executable, "-m", "vllm.entrypoints.cli.main", "serve", model, *options.split()]
    environment = {k: v for k, v in os.environ.items() if not k.startswith("LOGPROBE")} | {"VLLM_SERVER_DEV_MODE": "1"}
    with (folder / "server.log").open("w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, env=environment)
        try:
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()


def reload(address: str, folder: Path, named: Iterable[tuple[str, Any]]) -> None:
    """Gives the server at `address` these parameters; `folder` has the rest of the model."""
    import requests
    from safetensors.torch import save_file

    save_file({name: each.detach().contiguous().clone() for name, each in named}, folder / "model.safetensors")
    order = {"method": "reload_weights", "kwargs": {"weights_path": str(folder)}}
    requests.post(f"{address}/collective_rpc", json=order, timeout=300).raise_for_status()
    requests.post(f"{address}/reset_prefix_cache", timeout=300).raise_for_status()
