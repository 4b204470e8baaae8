"""`logprobe export`: a run as a table for notebooks, or as a bundle that another logprobe opens."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Final

from logprobe.app.commands.ingest import take
from logprobe.app.parsers.arguments import home_path
from logprobe.app.parsers.command_line import installed_version
from logprobe.app.text import tables
from logprobe.collectors.errors import ConfigurationError
from logprobe.collectors.plain_text import harmless
from logprobe.monitor.exporters.bundle import Manifest, export_bundle
from logprobe.monitor.exporters.table_files import export_table
from logprobe.monitor.home import Home
from logprobe.monitor.reader import open_reader

_BUNDLE: Final = ".logprobe"


def run(arguments: argparse.Namespace) -> int:
    """Writes the file and says what is in it, and what is not."""
    home, path = Home(home_path(arguments)), Path(arguments.file)
    if path.exists() and not arguments.overwrite:
        raise ConfigurationError(f"{path} exists; choose another FILE, or pass --overwrite")
    if home.spool.is_dir():
        take(home)  # what lies in the spool belongs to the run
    with open_reader(home) as reader:
        if path.suffix != _BUNDLE:
            rows = export_table(reader, arguments.name, arguments.what, path, raw=arguments.raw)
            print(
                f"{harmless(str(path))}: {rows:,} {'steps' if arguments.what == 'metrics' else 'tokens'} of "
                f"{harmless(arguments.name)}"
            )
            return 0
        manifest = export_bundle(reader, arguments.name, path, version=installed_version())
    print(tables.dump(manifest) if arguments.json else _words(path, manifest))
    return 0


def _words(path: Path, manifest: Manifest) -> str:
    files, left_out = manifest["files"], manifest["left_out"]
    counts = (
        ("training sequences", left_out["training_sequences"]),
        ("rollout sequences", left_out["rollout_sequences"]),
    )
    held = ", ".join(f"{entry['rows']:,} {Path(name).stem}" for name, entry in files.items() if entry["rows"])
    lost = ", ".join(f"{count:,} {name}" for name, count in counts if count)
    return f"{path}: {held}" + (f"\nnot included, because their raw tokens are not kept: {lost}" if lost else "")
