"""Training batches that SkyRL dumps (`trainer.dump_data_batch`): pickles of its own class, read without running any code contained in them."""

from __future__ import annotations

import io
import pickle
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from logprobe.collectors.errors import ConfigurationError, MissingExtraError

_REBUILD = "_rebuild_tensor_batch"  # called with the class and its state


class _Nothing:
    """Stands for whatever a pickle names: taken, and nothing is done with it."""

    def __new__(cls, *_args: Any, **_kwargs: Any) -> _Nothing:  # noqa: PYI034 - of no other class
        return object.__new__(cls)

    def __setstate__(self, state: Any) -> None:
        """Takes no state."""


class _Inert(pickle.Unpickler):
    """Imports nothing and calls nothing: of a batch, its state is kept."""

    def find_class(self, module: str, name: str) -> Any:
        return (lambda _class, state: state) if name == _REBUILD and module.startswith("skyrl") else _Nothing


def rows(path: Path) -> Iterator[dict[str, Any]]:
    """A row per sequence: all tokens, how many of them are the response, its mask and log-probs.

    Raises:
        ConfigurationError: no such dump.
        MissingExtraError: it holds tensors that only torch can read, and torch is not installed.
    """
    try:
        state = _Inert(io.BytesIO(path.read_bytes())).load()
        batch = {name: _array(value) for name, value in state["batch_dict"].items() if isinstance(value, Mapping)}
        tokens, attended, response = (batch[name] for name in ("sequences", "attention_mask", "response_mask"))
    except (pickle.UnpicklingError, EOFError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise ConfigurationError(f"{path}: not a batch dumped by SkyRL ({type(error).__name__}: {error})") from error
    names = {"loss_mask": "loss_mask", "rollout_logprobs": "rollout_logprobs", "action_log_probs": "trainer_logprobs"}
    for at in range(len(tokens)):
        chosen = response[at].astype(bool)
        columns = {
            ours: batch[name][at][chosen].tolist() for name, ours in names.items() if batch.get(name) is not None
        }
        row = {"token_ids": tokens[at][attended[at].astype(bool)].tolist(), "response_length": int(chosen.sum())}
        yield {"sample_id": f"{path.stem}-{at}", **row, **columns}


def _array(value: Mapping[str, Any]) -> Any:
    """A tensor as it was written: bytes of NumPy, or a file of torch; None: a list of tensors of many shapes."""
    if value.get("format") == "tensor_list":
        return None
    if value.get("format") != "torch":
        return np.frombuffer(value["data"], np.dtype(value["dtype"])).reshape(value["shape"])
    try:
        import torch  # noqa: PLC0415 - only such tensors need it
    except ModuleNotFoundError as error:
        raise MissingExtraError(
            "reading a batch of SkyRL in bfloat16 needs torch; pip install 'logprobe[torch]'"
        ) from error
    return torch.load(io.BytesIO(value["data"]), map_location="cpu", weights_only=True).float().numpy()
