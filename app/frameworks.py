"""What `logprobe doctor` says about training frameworks: which are installed, and how each is recorded."""

from __future__ import annotations

import importlib.metadata
import os
from collections.abc import Iterator, Mapping
from typing import Final, Literal

from logprobe.collectors.integrations.known import FRAMEWORKS, HOOKS_VARIABLE, Framework

Line = tuple[Literal["ok", "note", "problem"], str, str]
_ENTRY_POINTS: Final = {"verl": "verl.plugins", "SGLang": "sglang.srt.plugins"}
_LIMITS: Final = {"verl": "VERL_USE_EXTERNAL_PLUGINS", "SGLang": "SGLANG_PLUGINS"}


def lines(environment: Mapping[str, str] = os.environ) -> Iterator[Line]:
    """(level, text, remedy) for each known framework that is installed here."""
    found = [(framework, installed) for framework in FRAMEWORKS if (installed := _version(framework.distributions))]
    for framework, version in found:
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
    if not found:
        yield "note", "training frameworks: none that logprobe knows is installed here", ""


def _state(framework: Framework, environment: Mapping[str, str]) -> Line:
    if framework.way == "plugin":
        return _plugin(framework, environment)
    if framework.way == "options":
        return "note", f"recorded by {framework.words}", ""
    if environment.get(HOOKS_VARIABLE) == "1":
        return "ok", "live: hooks are installed when it is imported", ""
    other = f", or {framework.words}" if framework.words else ""
    return "note", "not recorded from this shell", f"start it with `logprobe run -- …`{other}"


def _plugin(framework: Framework, environment: Mapping[str, str]) -> Line:
    names = [point.name for point in importlib.metadata.entry_points(group=_ENTRY_POINTS[framework.name])]
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


def _version(distributions: tuple[str, ...]) -> str | None:
    for name in distributions:
        try:
            return importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return None
