"""What a session of tests writes down of a framework: all of it replaces what was known, a part only adds."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from features import is_whole


@pytest.mark.parametrize(
    ("arguments", "keyword", "exitstatus", "whole"),
    [
        (["tests/frameworks/trl_cases.py"], "", pytest.ExitCode.OK, True),
        (["tests/frameworks/trl_cases.py"], "", pytest.ExitCode.TESTS_FAILED, True),
        (["tests/frameworks/trl_cases.py"], "rloo", pytest.ExitCode.OK, False),
        (["tests/frameworks/trl_cases.py::test_rloo"], "", pytest.ExitCode.OK, False),
        (["tests/frameworks/trl_cases.py"], "", pytest.ExitCode.INTERRUPTED, False),
    ],
)
def test_a_session_is_whole(arguments: list[str], keyword: str, exitstatus: Any, *, whole: bool) -> None:
    config: Any = SimpleNamespace(args=arguments, option=SimpleNamespace(keyword=keyword))
    assert is_whole(config, exitstatus) is whole
