"""Small records. The host's thread reads scalars, times and step numbers. The recorder's thread makes rows of them."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, Final

from logprobe.collectors.errors import InputError
from logprobe.collectors.health import Problem
from logprobe.collectors.recorder import arrays, torch_bridge
from logprobe.collectors.recorder.arrays import text
from logprobe.collectors.recorder.capture import Captured, Part, array_part
from logprobe.collectors.recorder.documents import canonical_json
from logprobe.collectors.spool.schema import LARGEST

OWN_EVENTS: Final = frozenset({"started", "heartbeat", "closed"})  # what a recorder says of itself


def whole_number(name: str, value: Any) -> int:
    """Return `value` as an int that a record can hold.

    Raises:
        InputError: the value is not a whole number, is too large for a record, or is a tensor on a device.
    """
    number = value if type(value) is int else _index(name, value)
    if not -LARGEST <= number <= LARGEST:
        raise InputError(f"{name}={value!r}: beyond ±2^53; pass a smaller number, not one computed from NaN")
    return number


def _index(name: str, value: Any) -> int:
    number = arrays.scalar(name, value)
    if isinstance(number, bool):  # True would be counted as 1
        raise InputError(f"{name}={value!r} is not a whole number; pass one")
    if isinstance(number, float) and number.is_integer():
        return int(number)
    try:
        return operator.index(number)
    except TypeError:
        raise InputError(f"{name}={value!r} is not a whole number; pass one") from None


def event(name: str) -> str:
    """Return the event name that a host reports. Raise `InputError` for a name reserved for the recorder."""
    if name in OWN_EVENTS:
        raise InputError(f"event: {name!r} is reserved for the recorder; choose another name")
    return name


def state(component: str, event: str, message: str, details: object) -> dict[str, Any]:
    """Return a health record of the current state."""
    return {**Problem(event, "info", message, details=canonical_json(details)).row(component)}


def micros(value: float | datetime | None) -> int | None:
    """Return epoch seconds or a datetime in microseconds, or None if unknown.

    Raises:
        InputError: the value is not a point in time.
    """
    if value is None:
        return None
    seconds = value.timestamp() if isinstance(value, datetime) else float(arrays.scalar("time", value))
    if not math.isfinite(seconds) or abs(seconds) > 1e12:  # noqa: PLR2004 - milliseconds, mistaken for seconds
        raise InputError(f"time {value!r} is invalid; pass epoch seconds or a datetime")
    return round(seconds * 1e6)


def scalars(values: Mapping[str, Any]) -> tuple[list[tuple[str, float]], list[Part], list[str]]:
    """Return host numbers as pairs, device tensors to copy, and the problems of invalid values, which are dropped."""
    pairs: list[tuple[str, float]] = []
    parts: list[Part] = []
    problems: list[str] = []
    for name, value in values.items():
        try:
            if value is not None and torch_bridge.on_device(value):
                parts.append(_one_element(text(name) or "", value))
            elif value is not None:
                pairs.append((text(name) or "", _number(name, value)))
        except InputError as error:
            problems.append(str(error))
    return pairs, parts, problems


def correction(value: Any) -> str | Callable[[], str] | None:
    """Return the correction applied in a step as JSON, or for a `Correction` a function that computes it later.

    The function may wait for a device.
    """
    if value is None or isinstance(value, str):
        return value
    deferred = getattr(value, "deferred", None)
    if not callable(deferred):
        return canonical_json(value)
    read = deferred()
    return lambda: canonical_json(read())


def _one_element(name: str, value: Any) -> Part:
    part = array_part(name, arrays.as_piece(name, value))
    if math.prod(part.shape) != 1:
        raise InputError(f"scalar {name!r} has shape {part.shape}; pass one number")
    return part


def _number(name: object, value: Any) -> float:
    try:
        return float(arrays.scalar(str(name), value))
    except (TypeError, ValueError, ArithmeticError, RuntimeError):  # torch has its own for a tensor of many elements
        raise InputError(f"scalar {name!r} is a {type(value).__name__}; pass one number") from None


# --- In the recorder's thread ---


def row_of(item: Captured) -> Mapping[str, Any]:
    """Return the row of a small record, with values read from the device."""
    row = {"time": item.time_us, **item.values}
    if callable(row.get("correction")):
        row["correction"] = row["correction"]()
    from_device = [
        (name, float(arrays.to_float32(name, array).reshape(-1)[0])) for name, array in item.arrays().items()
    ]
    if from_device:
        row["scalars"] = [*row["scalars"], *from_device]
    return row
