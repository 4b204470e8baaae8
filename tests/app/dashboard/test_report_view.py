"""Blocks as Streamlit draws them: names stay text, what is to be done is asked twice, and a form keeps what was typed."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

import pytest
from streamlit.testing.v1 import AppTest

from logprobe.app.dashboard.elements.blocks import BY, action, details, facts, heading, place, row, table, text
from logprobe.app.dashboard.elements.markup import block, unmarked

HOSTILE = "<img src=x onerror=alert(1)> **b** $x$ [l](http://evil) :red[r]"


@pytest.fixture(autouse=True)
def _main_module(monkeypatch: pytest.MonkeyPatch) -> None:
    """Streamlit leaves its script behind as `__main__`, and processes that other tests start would run it."""
    monkeypatch.setitem(sys.modules, "__main__", sys.modules["__main__"])


def _session() -> None:
    import streamlit as st

    from logprobe.app.dashboard.views.report import report

    st.session_state["wanted"] = report("key", "label", st.session_state["blocks"])


def drawn(*blocks: Mapping[str, Any]) -> AppTest:
    app = AppTest.from_function(_session, default_timeout=120)
    app.session_state["blocks"] = list(blocks)
    app.run()
    assert not app.exception
    return app


def html_of(app: AppTest) -> str:
    return "".join(element.proto.body for element in app.get("html"))


def button(app: AppTest, label: str) -> Any:
    return next(each for each in app.button if each.label == label)


SAY = action("say", "Say", f"Says it to `{HOSTILE}`.", "", args={"to": HOSTILE})


@pytest.mark.parametrize(
    "shown",
    [
        heading(HOSTILE, HOSTILE), text(HOSTILE, "critical"), text(f"`{HOSTILE}`"), facts([(HOSTILE, HOSTILE)]),
        table(HOSTILE, (HOSTILE,), [row([HOSTILE]), row([place(HOSTILE, href="./?run=%3Cb%3E", help=HOSTILE)])], empty=HOSTILE),
        table("t", (HOSTILE,), [], empty=HOSTILE),
        {"type": "actions", "actions": [{"label": HOSTILE, "href": "./?run=%3Cb%3E"}]},
        {"type": "verdict", "tone": "ok", "icon": "✓", "word": HOSTILE, "words": HOSTILE, "note": HOSTILE,
         "facts": [[HOSTILE, HOSTILE]], "do": [[HOSTILE, HOSTILE, HOSTILE]], "links": [{"title": HOSTILE, "href": "./?x"}]},
    ],
)  # fmt: skip
def test_what_was_recorded_is_never_markup(shown: Mapping[str, Any]) -> None:
    markup = block(shown)
    assert "<img" not in markup
    assert "&lt;img src=x onerror=alert(1)&gt; **b** $x$ [l](http://evil) :red[r]" in markup


def test_a_label_has_no_markdown() -> None:
    assert unmarked("a*b $x$ :red[c]") == r"a\*b \$x\$ \:red\[c\]"


def test_what_is_read_is_one_part_and_what_is_done_stands_below_its_row() -> None:
    rows = [row(["first", "1"]), row(["second", "2"], tone="critical", actions=[SAY]), row(["third", "3"])]
    app = drawn(heading("Title"), text("words"), table("rows", ("x", "y"), rows, empty=""))
    bodies = [element.proto.body for element in app.get("html")]
    assert bodies[0].startswith('<section class="lp lp-report" aria-label="label">')
    assert ["first" in body and "second" in body for body in bodies[1:]] == [True, False]
    assert "lp-heard" not in bodies[1]
    assert "lp-heard" in bodies[2]  # heads are heard with each part, and seen once
    assert [each.label for each in app.button] == ["Say"]


def test_links_belong_to_the_part_that_they_end() -> None:
    app = drawn(heading("Title"), {"type": "actions", "actions": [{"label": "Close", "href": "./?runbook="}]})
    (body,) = (element.proto.body for element in app.get("html"))
    assert body.endswith('<a href="./?runbook=" class="lp-button">Close</a></div></section>')


def test_what_is_to_be_done_is_asked_twice() -> None:
    app = drawn({"type": "actions", "actions": [SAY]})
    button(app, "Say").click().run()
    assert app.session_state["wanted"] is None
    assert "&lt;img src=x" in html_of(app)
    next(each for each in app.button if each.label == "Say" and each.form_id).click().run()
    assert app.session_state["wanted"] is None  # without a name nothing is done
    assert app.error[0].value == "Missing\\: your name\\."
    app.text_input[0].input("Ada")
    next(each for each in app.button if each.label == "Say" and each.form_id).click().run()
    wanted = app.session_state["wanted"]
    assert {name: wanted[name] for name in ("id", "to", "by")} == {"id": "say", "to": HOSTILE, "by": "Ada"}
    app.run()
    assert app.session_state["wanted"] is None  # once
    assert [each.label for each in app.button] == ["Say"]  # and the form is gone
    button(app, "Say").click().run()
    assert app.text_input[0].value == "Ada"  # remembered


def test_one_of_several_choices_and_cancelling() -> None:
    choices = [{"label": "1 h", "args": {"for": "1h"}}, {"label": "4 h", "args": {"for": "4h"}}]
    app = drawn({"type": "actions", "actions": [action("snooze", "Snooze", "words", "", fields=[], choices=choices)]})
    button(app, "Snooze").click().run()
    button(app, "Cancel").click().run()
    assert app.session_state["wanted"] is None
    assert [each.label for each in app.button] == ["Snooze"]
    button(app, "Snooze").click().run()
    button(app, "4 h").click().run()
    assert app.session_state["wanted"]["for"] == "4h"


def test_a_form_keeps_what_was_typed_while_rows_come_and_go() -> None:
    options = {"name": "severity", "label": "severity", "value": "", "options": ["", "critical"]}
    asking = action(
        "silence", "Silence", "words", "", fields=[{"name": "rule", "label": "rule; *", "value": "a"}, options, BY]
    )
    rows = [row(["gap"], actions=[asking])]
    app = drawn(table("firing", ("alert",), rows, empty=""))
    button(app, "Silence").click().run()
    field, form = app.text_input[0].proto.id, app.text_input[0].form_id
    app.session_state["blocks"] = [text("news"), table("firing", ("alert",), [row(["other"]), *rows], empty="")]
    app.run()
    assert (app.text_input[0].proto.id, app.text_input[0].form_id) == (
        field,
        form,
    )  # by which the browser keeps what was typed
    assert app.selectbox[0].options == ["any", "critical"]


def test_a_form_whose_action_is_blocked_is_closed_whatever_the_browser_asked_for() -> None:
    app = drawn({"type": "actions", "actions": [SAY]})
    button(app, "Say").click().run()
    assert len(app.text_input) == 1
    app.session_state["blocks"] = [{"type": "actions", "actions": [{**SAY, "disabled": "it is `away`"}]}]
    app.run()
    assert (len(app.text_input), app.button[0].disabled, app.button[0].help) == (0, True, "it is away")
    assert app.session_state["wanted"] is None


def test_long_lists_and_details_are_folded() -> None:
    rows = [row([f"row {at}"], actions=[SAY] if at == 11 else []) for at in range(12)]
    app = drawn(
        table("recent", ("x",), rows, empty="", fold=True), details("quiet", "1 finding: *none*", [text("inside")])
    )
    assert [each.label for each in app.expander] == ["4 more", r"1 finding\: \*none\*"]
    assert "inside" in html_of(app)
    short = drawn(table("recent", ("x",), rows[:10], empty="", fold=True))
    assert not short.expander
