"""`logprobe export RUN --to TARGET`: export a run.

Targets: a table for notebooks, a bundle for another logprobe, or metrics of TensorBoard, W&B or trackio. Each step is
logged once.
"""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final

from logprobe.app.ingesting import take
from logprobe.app.runs import run_of, run_reader
from logprobe.app.surface.arguments import Arguments, home_path, refuse_usage
from logprobe.app.surface.version import installed_version
from logprobe.app.text import tables
from logprobe.collectors.errors import ConfigurationError
from logprobe.collectors.plain_text import harmless
from logprobe.monitor.home import Home

if TYPE_CHECKING:
    from logprobe.monitor.exporters.bundle import Manifest

_BUNDLE: Final = ".logprobe"
_LOGGERS: Final = ("tensorboard", "wandb", "trackio")
_OF_LOGGERS: Final = ("project", "dir", "offline", "page")
_OF_TARGETS: Final = ("project", "dir", "offline")
_OF_FILES: Final = ("overwrite",)


def run(arguments: Arguments) -> int:
    """Write the file or log the metrics, and report what was omitted."""
    to_logger = arguments.to in _LOGGERS
    unfit = [f"--{name}" for name in (_OF_FILES if to_logger else _OF_LOGGERS) if getattr(arguments, name)]
    if unfit:
        refuse_usage(f"--to {arguments.to}: leave out {', '.join(unfit)}")
    home = Home(home_path(arguments))
    if not to_logger and Path(arguments.to).exists() and not arguments.overwrite:
        raise ConfigurationError(f"{arguments.to} exists; choose another --to, or pass --overwrite")
    if home.spool.is_dir() and home.refusal() is None:
        take(home)  # what lies in the spool belongs to the run
    return _log(home, arguments) if to_logger else _write(arguments)


def _write(arguments: Arguments) -> int:
    from logprobe.monitor.exporters.bundle import export_bundle  # noqa: PLC0415 - each target loads what it needs
    from logprobe.monitor.exporters.table_files import export_table  # noqa: PLC0415

    path, run_name = Path(arguments.to), arguments.name
    with run_reader(arguments) as reader:
        if path.suffix == _BUNDLE:
            manifest = export_bundle(reader, run_name, path, version=installed_version())
            print(tables.dump(manifest) if arguments.json else _words(path, manifest))
            return 0
        rows = export_table(reader, run_name, arguments.what, path)
    noun = "steps" if arguments.what == "metrics" else "tokens"
    print(f"{harmless(str(path))}: {rows:,} {noun} of {harmless(run_name)}")
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


def _log(home: Home, arguments: Arguments) -> int:
    """Log all steps, including the newest, and report the number of new ones."""
    from logprobe.app.processes import logger  # noqa: PLC0415 - each target loads what it needs
    from logprobe.monitor.exporters.loggers import open_target, push  # noqa: PLC0415

    given = {name: value for name in _OF_TARGETS if (value := getattr(arguments, name))}
    settings = logger.checked("--to", [{"to": arguments.to, **given}])[0]
    with run_reader(arguments) as reader:
        target = open_target(settings, arguments.name, home)
        try:
            logged = push(reader, arguments.name, target)
            judgement = run_of(reader, arguments.name, datetime.now(UTC)).judgement
            if judgement.verdict is not None or judgement.alerts:
                target.stand(logger.standing(judgement, arguments.name, arguments.page))
        finally:
            target.close()
    print(
        f"{logged:,} steps of {harmless(arguments.name)} logged to {settings.to}"
        + ("" if logged else "; it has them already")
    )
    return 0
