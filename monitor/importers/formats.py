"""What can be imported. One declaration per format."""

from __future__ import annotations

from typing import Final

from logprobe.collectors.errors import ConfigurationError
from logprobe.monitor.exporters import bundle
from logprobe.monitor.importers import scalar_files, tensorboard, token_files, torch_files, wandb_files
from logprobe.monitor.importers.source import Format, json_lines, parquet_rows

_ALL: Final = (
    Format("jsonl", "training sequences, our schema", ("*.jsonl",), json_lines, token_files.generic),
    Format("parquet", "training sequences, our schema", ("*.parquet",), parquet_rows, token_files.generic),
    Format("nemo-rl", "train_data_step<N>.jsonl", ("train_data_step*.jsonl",), json_lines, token_files.nemo_rl),
    Format("slime", "debug .pt of slime and miles", ("*.pt",), torch_files.samples, token_files.slime),
    Format("prime-rl", "token_exports", ("rank_*.jsonl",), json_lines, token_files.prime_rl),
    Format("open-instruct", "<run>_rollouts_<N>.jsonl", ("*_rollouts_*.jsonl",), json_lines, token_files.open_instruct),
    Format(
        "scalars",
        "logs of verl, ms-swift, TRL and W&B (jsonl, trainer_state.json, csv)",
        ("*.jsonl", "trainer_state.json", "*.csv"),
        scalar_files.log_entries,
        scalar_files.logged,
    ),
    Format("tensorboard", "event files", ("*tfevents*",), tensorboard.records, tensorboard.event),
    Format("wandb", "run-<id>.wandb of W&B, also offline", ("*.wandb",), wandb_files.records, wandb_files.history),
    Format("bundle", "NAME.logprobe of `logprobe export`", ("*.logprobe",), bundle.records, bundle.record),
)
FORMATS: Final = {form.name: form for form in _ALL}


def named(name: str) -> Format:
    """The format of that name. Raises `ConfigurationError` that lists all of them."""
    if name not in FORMATS:
        raise ConfigurationError(f"no format {name!r}; there are {', '.join(FORMATS)}")
    return FORMATS[name]
