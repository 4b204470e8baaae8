"""What describes a peer framework, and the one way its options are read."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from numbers import Real
from typing import Any, Final

from logprobe.collectors.errors import ConfigurationError
from logprobe.monitor.peers.inputs import Tokens
from logprobe.monitor.peers.reductions import Floats

_FLAGS: Final = {"true": True, "false": False}


@dataclass(frozen=True)
class Reading:
    """What a framework makes of one batch."""

    metrics: Mapping[str, float]  # under the keys it logs
    weights_BT: Floats | None = None  # factors on the loss before it masks tokens; None: it applies none
    mask_BT: Floats | None = None  # its loss mask after rejection; None: unchanged


def option(default: Any, words: str, *choices: Any) -> Any:
    """A field of a peer's options. Without `choices` a number, or a flag where the default is one."""
    return field(default=default, metadata={"words": words, "choices": choices})


def bound(default: Any, words: str) -> Any:
    """A field of a peer's options: a number above 0, or None where the default says so or the framework allows it."""
    return field(default=default, metadata={"words": words, "choices": (), "positive": True})


def specification(default: Any, words: str) -> Any:
    """A field of a peer's options that the framework reads as text itself, such as ``"0.5_2.0"``."""
    return field(default=default, metadata={"words": words, "choices": (), "text": True})


@dataclass(frozen=True)
class CommonOptions:
    """Options of every peer."""

    dtype: str = option(
        "float64",
        "arithmetic; float32 shows the rounding that the framework's own numbers carry",
        "float64",
        "float32",
    )


@dataclass(frozen=True)
class Peer:
    """One framework."""

    name: str
    options: type[CommonOptions]
    read: Callable[[Tokens, Any], Reading]
    prefixes: tuple[str, ...]  # its logger puts these before the names in its code
    headline: tuple[str, ...]  # what a table shows when nobody chose

    def parse(self, given: Mapping[str, Any]) -> CommonOptions:
        """Options by name. Raises `ConfigurationError` for an unknown name or a value that does not fit."""
        known = {entry.name: entry for entry in fields(self.options)}
        for name, value in given.items():
            if name not in known:
                raise ConfigurationError(f"{self.name} has no option {name!r}{suggestion(name, known)}")
            _check(self.name, name, value, known[name].default, known[name].metadata)
        return self.options(**given)

    def parse_text(self, given: Mapping[str, str]) -> dict[str, Any]:
        """Options as a command line has them; values become flags, numbers and None where they are meant to be."""
        texts = {entry.name for entry in fields(self.options) if entry.metadata.get("text")}
        return {name: value if name in texts else _from_text(value) for name, value in given.items()}


def suggestion(name: str, known: Iterable[str]) -> str:
    """End of a message about an unknown name: the one that was meant, else what there is."""
    names = list(known)
    close = difflib.get_close_matches(name, names, n=1)
    return f"; did you mean {close[0]!r}?" if close else f"; known are {', '.join(names)}"


def _check(peer: str, name: str, value: Any, default: Any, about: Mapping[str, Any]) -> None:
    wanted = _wanted(value, default, about)
    if wanted:
        raise ConfigurationError(f"{peer}: {name}={value!r}; it is {wanted}")


def _wanted(value: Any, default: Any, about: Mapping[str, Any]) -> str:
    """What the value should have been; empty where it is that."""
    choices = about["choices"]
    if choices:
        return "" if value in choices else f"one of {', '.join(map(repr, choices))}"
    if isinstance(default, bool):
        return "" if isinstance(value, bool) else "True or False"
    if about.get("text") or value is None:
        return ""
    if isinstance(value, bool) or not isinstance(value, Real):  # numpy's numbers are of this kind, too
        return "a number or None"
    return "a number above 0" if about.get("positive") and not float(value) > 0 else ""


def _from_text(text: str) -> Any:
    if text.lower() in _FLAGS:
        return _FLAGS[text.lower()]
    if text.lower() in {"none", "null"}:
        return None
    try:
        return float(text)
    except ValueError:
        return text
