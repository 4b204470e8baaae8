"""What the fields of rules hold: durations, windows, factors, names."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated, Final

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PlainSerializer, WithJsonSchema

Word = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9_-]*$", max_length=80)]
Steps = Annotated[int, Field(ge=0, le=100_000)]
Window = Annotated[int, Field(ge=1, le=1_000)]
Finite = Annotated[float, Field(allow_inf_nan=False)]
Factor = Annotated[float, Field(gt=0, allow_inf_nan=False)]
_UNITS: Final = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}


def span(text: str) -> timedelta:
    """``90s``, ``10m``, ``2h`` or ``1d``. Raises `ValueError`.

    >>> span("90s") == span("1.5m")
    True
    """
    unit = _UNITS.get(text.strip()[-1:])
    try:
        return timedelta(**{unit or "": float(text.strip()[:-1])})
    except (TypeError, ValueError, OverflowError):
        raise ValueError(f"{text!r} is not a duration; write 90s, 10m, 2h or 1d") from None


Span = Annotated[
    timedelta,
    BeforeValidator(lambda value: span(value) if isinstance(value, str) else value),
    PlainSerializer(lambda value: f"{value.total_seconds():g}s", return_type=str),
    WithJsonSchema({"type": "string", "pattern": r"^[0-9.]+[smhd]$"}),
    Field(ge=timedelta(seconds=1)),
]


class Model(BaseModel):
    """Plain data; an unknown key is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True)
