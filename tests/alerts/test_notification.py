"""A notification survives JSON unchanged."""

from __future__ import annotations

import json
import math
from dataclasses import replace

from alert_notes import NOTE
from hypothesis import given, settings
from hypothesis import strategies as st

from logprobe.alerts.notification import Notification


@settings(max_examples=25)
@given(value=st.floats(), step=st.integers(0, 2**62), text=st.text())
def test_round_trip_of_anything(value: float, step: int, text: str) -> None:
    note = replace(NOTE, value=value, step=step, summary=text)
    back = Notification.from_json(note.to_json())
    assert (back == note) or (math.isnan(value) and math.isnan(back.value))
    json.loads(note.to_json(), parse_constant=lambda name: 1 / 0)  # strict JSON: other readers know no NaN


def test_fields_of_a_newer_version_are_left_out() -> None:
    document = NOTE.document() | {"mood": "fine"}
    assert Notification.from_json(json.dumps(document)) == NOTE
