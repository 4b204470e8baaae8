"""What is said to have changed before an onset: settings with both values, replicas and tags."""

from __future__ import annotations

import json

from logprobe.app.view.changes import came_and_went, configured, settings


def test_settings_of_any_depth_with_both_values() -> None:
    before = json.dumps({"a": {"b": 1, "gone": "x"}, "same": [1, 2], "empty": {}})
    after = json.dumps({"a": {"b": None}, "same": [1, 2], "new": {"c": [3]}, "empty": {}})
    assert settings(before, after) == [("a.b", 1, None), ("a.gone", "x", None), ("new.c", None, [3])]
    words = configured({"before": before, "document": after})
    assert words == "a.b 1 → not set; a.gone x → not set; new.c not set → [3]"


def test_the_first_setting_past_the_limit_is_counted() -> None:
    many = {f"k{i:02}": i for i in range(21)}
    words = configured({"before": "{}", "document": json.dumps(many)})
    assert words.endswith("k19 not set → 19; and 1 more")
    del many["k20"]
    assert "more" not in configured({"before": "{}", "document": json.dumps(many)})
    assert configured({"before": "{}", "document": "{}"}) == "no setting that is recorded"


def test_replicas_and_tags_that_came_and_went() -> None:
    parts = [
        {"what": "replica", "value": "r0", "first": 50, "last": 105},  # there all the time
        {"what": "replica", "value": "r1", "first": 50, "last": 90},
        {"what": "replica", "value": "r2", "first": 91, "last": 105},
        {"what": "task", "value": "code", "first": 100, "last": 105},  # with the onset
        {"what": "task", "value": "late", "first": 101, "last": 105},  # after it: no cause
    ]
    assert came_and_went(parts, 100) == [
        (91, "replica", "r1 is gone"),
        (91, "replica", "r2 comes up"),
        (100, "tag task", "code comes up"),
    ]
    assert came_and_went([], 100) == []
