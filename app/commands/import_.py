"""`logprobe import`: import what another program, or another logprobe, recorded."""

from __future__ import annotations

import argparse
import sys
from dataclasses import asdict, replace
from pathlib import Path

from logprobe.app.commands.ingest import take
from logprobe.app.parsers.arguments import home_path
from logprobe.app.processes.follow import follow
from logprobe.app.text import tables
from logprobe.app.text.terminal import replace_line
from logprobe.collectors.errors import ConfigurationError
from logprobe.monitor.exporters.bundle import read_manifest
from logprobe.monitor.home import Home
from logprobe.monitor.importers import formats
from logprobe.monitor.importers.importing import Importer, alone
from logprobe.monitor.importers.pieces import ImportReport
from logprobe.monitor.importers.source import Format
from logprobe.monitor.parallel.ray_pool import pool_at
from logprobe.monitor.reader import open_reader


def run(arguments: argparse.Namespace) -> int:
    """Imports, ingests, reports; exit code 0 also when single lines were left out, which the report names."""
    home, root = Home(home_path(arguments)), Path(arguments.path)
    if not root.exists() and not arguments.follow:
        raise ConfigurationError(f"{root} does not exist; check PATH")
    run, form = _run_name(arguments, root), formats.named(arguments.format)
    if arguments.files:
        form = replace(form, patterns=(arguments.files,))
    if arguments.follow:
        if arguments.ray:
            raise ConfigurationError("--follow reads files as they grow, on this machine; omit --ray")
        return follow(home, form, root, run, json=arguments.json)
    report = _imported(home, form, root, run, arguments.ray)
    if arguments.json:
        print(tables.dump(asdict(report)))
    else:
        _show(report, run)
    return 0


def _run_name(arguments: argparse.Namespace, root: Path) -> str:
    """As asked for; a bundle knows its own."""
    if arguments.run:
        return str(arguments.run)
    if arguments.format == "bundle" and root.is_file():
        return str(read_manifest(root)["run"])
    raise ConfigurationError("no run named: pass --run NAME")


def _imported(home: Home, form: Format, root: Path, run: str, ray: str | None) -> ImportReport:
    with alone(home, run, form), pool_at(ray) as pool:
        take(home)  # what an interrupted import left in the spool
        with open_reader(home) as reader:
            importer = Importer(home, run, form, reader)
        report = importer.run(root, pool, _progress)
        take(home)
    return report


def _progress(report: ImportReport, name: str, files: int) -> None:
    replace_line(f"{report.files:,}/{files:,} files, {report.units:,} new: {tables.harmless(name)}")


def _show(report: ImportReport, run: str) -> None:
    if sys.stderr.isatty():
        print(file=sys.stderr)
    rows = ", ".join(f"{count:,} {kind}" for kind, count in sorted(report.rows.items())) or "nothing"
    print(f"{rows} added to {run} from {report.files} files; {report.known:,} units were there already")
    if report.bad_units:
        print(f"{report.bad_units:,} left out:")
        for line in report.bad:
            print(f"  {line}")
