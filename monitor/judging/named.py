"""Names of a remedy in the training framework or in vLLM: setting, current and suggested value, text to paste.

The names are data in `framework_settings.yaml`. A setting missing there is not guessed.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

from logprobe.monitor.judging.document import DiagnosisDocument, FindingDocument, SettingDocument
from logprobe.monitor.judging.setup import Setup
from logprobe.monitor.settings.yaml_text import packaged

_FILE: Final = "framework_settings.yaml"
_ENGINE: Final = "vllm"
_ENGINE_SIGN: Final = "logprobs_mode"  # that every engine configuration of vLLM has
_EQUAL: Final = 1e-9  # relative
_SHOWN: Final = 3  # values of a setting


@cache
def table() -> Mapping[str, Mapping[str, Any]]:
    """Return the content of the file: framework → names of its settings."""
    return dict(packaged("logprobe.monitor.judging", _FILE))


def framework_of(setup: Setup) -> str | None:
    """Return the training framework by its recorder, or vLLM if only that is known, or None."""
    named = (setup.trainer or {}).get("framework")
    if isinstance(named, str):
        return named
    return _ENGINE if any(_ENGINE_SIGN in engine for engine in setup.engines) else None


def with_settings(diagnosis: DiagnosisDocument, setup: Setup) -> DiagnosisDocument:
    """Return the diagnosis with a setting for each remedy that needs one and is not in effect."""
    advised, name = diagnosis["correction"]["advice"] == "enable", framework_of(setup)
    findings: list[FindingDocument] = [
        finding
        if finding["urgency"] == "informational"
        else {
            **finding,
            "settings": settings_of(finding["cause"], setup, advised=advised, bound=finding["evidence"].get("bound")),
        }
        for finding in diagnosis["findings"]
    ]
    title = None if name is None else table().get(name, {}).get("title", name)
    return {**diagnosis, "framework": title, "findings": findings}


def settings_of(cause: str, setup: Setup, *, advised: bool = False, bound: int | None = None) -> list[SettingDocument]:
    """Return the framework's settings that remove a cause, or else vLLM's arguments as the framework passes them.

    Args:
        cause: cause of the finding.
        setup: setup of engine and trainer.
        advised: true if a correction is advised.
        bound: largest safe weight lag in versions, or None if unknown.
    """
    name = framework_of(setup)
    if name is None:
        return []
    declared = table().get(name, {})
    own = list(_Framework(name, setup, bound=bound).settings(cause, advised=advised))
    closed = declared.get("causes", {}).get(cause) == [] or not any(_ENGINE_SIGN in engine for engine in setup.engines)
    if own or closed:
        return own
    return list(_Framework(_ENGINE, setup, through=declared).settings(cause, advised=advised))


def told(finding: FindingDocument) -> str:
    """Return a finding's remedy with its settings."""
    return " ".join([finding["fix"], *(f"{in_words(setting)}." for setting in finding["settings"])])


def in_words(setting: SettingDocument) -> str:
    """Return a setting as text, with its framework and its present value."""
    return f"`{setting['copy']}` ({'; '.join((setting['framework'], *particulars(setting)))})"


def particulars(setting: SettingDocument) -> tuple[str, ...]:
    """Return the place of a setting, its current value, and the meaning of that value."""
    values = [_plain(value) for value in setting["now"] or ()]
    more = f" and {len(values) - _SHOWN:,} more" if len(values) > _SHOWN else ""
    now = "not recorded" if setting["now"] is None else ", ".join(values[:_SHOWN]) + more
    return tuple(filter(None, (setting["where"], f"now {now}", setting["words"])))


@dataclass(frozen=True)
class _Framework:
    """One framework's settings in a run. `through`: framework that passes vLLM its arguments. `bound`: see
    `settings_of`."""

    name: str
    setup: Setup
    through: Mapping[str, Any] | None = None
    bound: int | None = None

    def settings(self, cause: str, *, advised: bool) -> Iterator[SettingDocument]:
        """Yield the settings that remove `cause`, except those already set. Include a correction only if advised."""
        for entry in self._entries.get(cause, ()):
            now = self._now(entry)
            setting = self._setting(entry, now, self._suggested(entry, now))
            fine = [*([setting["suggested"]] if setting["known"] else []), *entry.get("fine", ())]
            done = now is not None and all(any(_same(value, good) for good in fine) for value in now)
            done |= bool(entry.get("lag") and now) and all(
                _is_number(value) and value <= fine[0] for value in now or ()
            )
            if not done and (advised or not setting["corrects"]):
                yield setting

    @property
    def _entries(self) -> Mapping[str, Any]:
        entries: Mapping[str, Any] = table().get(self.name, {}).get("causes", {})
        return entries

    def _now(self, entry: Mapping[str, Any]) -> tuple[Any, ...] | None:
        """Return the recorded values of a setting, or None if none was recorded."""
        place, _, key = entry.get("now", f"trainer.{entry['name']}").partition(".")
        if place == "trainer":
            trainer = self.setup.trainer or {}
            return (trainer[key],) if key in trainer else None
        if place == "engine":
            held = [engine[key] for engine in self.setup.engines if key in engine]
        else:
            held = [params[key] for params in (self.setup.samplings or {}).values() if key in params]
        return tuple(dict.fromkeys(held)) if held and all(_hashable(value) for value in held) else None

    def _suggested(self, entry: Mapping[str, Any], now: tuple[Any, ...] | None) -> Any:
        if "same" in entry:
            return (self.setup.trainer or {}).get(entry["same"])
        if "times" in entry:
            value = now[0] if now and len(now) == 1 else None
            return float(f"{value * entry['times']:.3g}") if _is_number(value) else None
        if entry.get("lag") and self.bound is not None:
            return max(self.bound, entry["to"])
        return entry.get("to")

    def _setting(self, entry: Mapping[str, Any], now: tuple[Any, ...] | None, to: Any) -> SettingDocument:
        declared, through = table()[self.name], self.through or {}
        passed = "where" not in entry and through.get("engine")
        has_value = "to" in entry or to is not None
        form = passed or entry.get("write") or declared["write"]
        return {
            "framework": through["title"] if passed else declared["title"],
            "where": entry.get("where", ""),
            "name": entry["name"],
            "now": None if now is None else list(now),
            "suggested": to,
            "known": has_value,
            "words": entry.get("words", "") or ("" if has_value else _unvalued(entry)),
            "copy": _written(form, declared["values"], entry["name"], to) if has_value else _named(form, entry["name"]),
            "corrects": bool(entry.get("correction")),
        }


def _unvalued(entry: Mapping[str, Any]) -> str:
    """Return the instruction for a setting whose value depends on an unrecorded one."""
    return f"the value of {entry['same']}" if "same" in entry else f"{entry['times']:g} × its value"


def _written(form: str, spelling: str, name: str, to: Any) -> str:
    """Return the text of a setting to paste. A command-line flag has no value."""
    if form.startswith("--{dashed}") and isinstance(to, bool):
        return f"--{'' if to else 'no-'}{_dashed(name)}"
    if name.startswith("--") and to is True:
        return name
    value = repr(to) if spelling == "python" else _plain(to)
    return form.format(name=name, dashed=_dashed(name), value=value, json=json.dumps(_nested(name, to)))


def _named(form: str, name: str) -> str:
    """Return the name of a setting without a suggested value."""
    return form.format(name=name, dashed=_dashed(name), value="", json=json.dumps(_nested(name, None))).rstrip(" =")


def _dashed(name: str) -> str:
    first, *rest = name.split(".")
    return ".".join((first.replace("_", "-"), *rest))


def _nested(name: str, value: Any) -> Any:
    for part in reversed(name.split(".")):
        value = {part: value}
    return value


def _plain(to: Any) -> str:
    return str(to) if isinstance(to, str) else json.dumps(to)


def _same(value: Any, other: Any) -> bool:
    if _is_number(value) and _is_number(other):
        return bool(abs(value - other) <= _EQUAL * abs(other))
    return type(value) is type(other) and bool(value == other)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _hashable(value: Any) -> bool:
    return value is None or isinstance(value, str | int | float | bool)
