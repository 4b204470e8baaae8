"""What can be imported. One declaration per format."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from logprobe.collectors.errors import ConfigurationError
from logprobe.monitor.exporters import bundle
from logprobe.monitor.importers import scalar_files, tensorboard, token_files, torch_files, wandb_files
from logprobe.monitor.importers.source import Format, Read, Unit, json_lines, parquet_rows, recorded_batches

_ALL: Final = (
    Format("jsonl", "training sequences, logprobe's schema", ("*.jsonl",), json_lines, token_files.generic, json_lines),
    Format("parquet", "training sequences, logprobe's schema", ("*.parquet",), parquet_rows, token_files.generic),
    Format(
        "nemo-rl", "train_data_step<N>.jsonl", ("train_data_step*.jsonl",), json_lines, token_files.nemo_rl, json_lines
    ),
    Format("slime", "debug .pt of slime and miles", ("*.pt",), torch_files.samples, token_files.slime),
    Format(
        "prime-rl",
        "token_exports",
        ("rank_*.jsonl",),
        json_lines,
        token_files.prime_rl,
        json_lines,
        complete=token_files.prime_unstable,
    ),
    Format(
        "open-instruct",
        "<run>_rollouts_<N>.jsonl",
        ("*_rollouts_*.jsonl",),
        json_lines,
        token_files.open_instruct,
        json_lines,
    ),
    Format(
        "scalars",
        "logs of verl, ms-swift, TRL and W&B (jsonl, trainer_state.json, csv)",
        ("*.jsonl", "trainer_state.json", "*.csv"),
        scalar_files.log_entries,
        scalar_files.logged,
        in_parts=True,
    ),
    Format("tensorboard", "event files", ("*tfevents*",), tensorboard.records, tensorboard.event, in_parts=True),
    Format(
        "wandb",
        "run-<id>.wandb of W&B, also offline",
        ("*.wandb",),
        wandb_files.records,
        wandb_files.history,
        in_parts=True,
    ),
    Format("bundle", "NAME.logprobe of `logprobe export`", ("*.logprobe",), bundle.records, bundle.record),
)
FORMATS: Final = {form.name: form for form in _ALL}
RECORDED: Final = "recorded"  # a file of a recorded run: read under the same limits, never imported


def named(name: str) -> Format:
    """The format of that name. Raises `ConfigurationError` that lists all of them."""
    if name not in FORMATS:
        raise ConfigurationError(f"no format {name!r}; there are {', '.join(FORMATS)}")
    return FORMATS[name]


def read(name: str, path: Path, start: int, *, ended: bool) -> Iterator[Unit]:
    """The units of a file of a format, or of a recorded run; `start` and `ended` are as in `source.ReadOn`."""
    read_on = None if name == RECORDED else named(name).read_on
    if read_on is not None:
        return read_on(path, start, ended)
    reader: Read = recorded_batches if name == RECORDED else named(name).read
    return reader(path)
