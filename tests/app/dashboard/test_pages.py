"""Every page of a stored home: what it says, that it survives without data and without a service, and that text stays text."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pytest
from recorded_home import SAMPLE_DATA, take_in
from streamlit.testing.v1 import AppTest
from training_calls import attack

from logprobe.alerts.controller.policy import POLICY
from logprobe.alerts.sending.actions import CHANNELS
from logprobe.app.dashboard import acting, data
from logprobe.app.dashboard.access.settings import Permission
from logprobe.app.dashboard.page_table import PAGES
from logprobe.collectors.errors import ConfigurationError, ServiceUnavailableError
from logprobe.collectors.recorder.recorder import Recorder
from logprobe.collectors.spool.segments import SpoolWriter
from logprobe.monitor.analysis.profile_job import ProfileJob
from logprobe.monitor.home import Home
from logprobe.monitor.judging.job import DiagnosisStage
from logprobe.monitor.reader import FileReader
from logprobe.monitor.recorded import RecordedRun
from logprobe.monitor.service.turns import Turns
from logprobe.monitor.store.store import Store

RUN = (  # its name is an attack
    '<img src=x onerror="window.hostile=1">"><script>window.hostile=1</script>[a](javascript:window.hostile=1)'
    "![b](http://foreign.invalid/b)\u202e"
)
CHANNEL = {
    "name": RUN, "kind": "slack", "severities": ["critical"], "waits_until": None, "why": None, "sent": 3, "waiting": 0,
    "dead": 1, "last_sent_at": None, "last_error": RUN,
}  # fmt: skip
ANSWERS: dict[str, Any] = {CHANNELS: {"problem": None, "channels": [CHANNEL]}}
OTHER = "other"
VIEWS = [
    *((page.path, {}) for page in PAGES),
    ("mismatch", {"view": "weights"}),
    ("alerts", {"list": "incidents"}),
    ("data", {"of the data": "SQL"}),
]
# What tells that a page is drawn.
SAYS = {
    "runs": "2 of 2 runs", "": "raw logprobs", "diagnosis": "processed_logprobs", "mismatch": "Log-ratio quantiles", "tokens": "Worst tokens",
    "compare": "Verdicts", "alerts": "Thresholds", "correction": "never switched on", "data": "tokens under the mask",
}  # fmt: skip


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home with a recorded run that is critical and whose every name is an attack, and another run."""
    home, recorded = tmp_path_factory.mktemp("pages") / "home", RecordedRun(SAMPLE_DATA / "v1-initial")
    writer = SpoolWriter(home, RUN, "replay")
    for kind in recorded.kinds:
        table = recorded.table(kind)
        writer.write(kind, table.filter(pc.less(table["step"], 40)) if kind in {"training", "step"} else table)
    with Recorder(home, RUN, rank=0) as recorder, Recorder(home, OTHER, rank=0) as other:
        recorder.config({RUN: RUN, "framework": RUN}, kind="trainer_config")
        recorder.report("hostile", RUN, severity="error", component="test")
        attack(recorder, [40], RUN)
        attack(other, range(4), RUN)
    with Store.open(Home(home)) as store:
        take_in(store)
        ProfileJob(store).run_once()
        turns = Turns(DiagnosisStage(store))
        while turns.run_once()["waiting"]:  # a turn has its seconds, which a busy machine may spend on one run
            pass
    return home


@pytest.fixture
def look(stored: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., AppTest]]:
    """Draws a page: ``look("diagnosis", run="r")``."""
    with FileReader(Home(stored)) as reader:
        monkeypatch.setattr(data, "_LOOKS", {})  # that the service was away in another test is no news of this one
        monkeypatch.setenv("LOGPROBE_HOME", str(stored))
        monkeypatch.setattr(data, "reader", lambda: reader)
        monkeypatch.setattr(acting, "consult", lambda action, _: ANSWERS[action])

        def drawn(page: str, **query: str) -> AppTest:
            script = Path(data.__file__).parent / "shell" / "script.py"
            app = AppTest.from_file(str(script), default_timeout=300)
            for name, value in {"page": page or "overview", **query}.items():
                app.query_params[name] = value
            return app.run()

        yield drawn


def text_of(app: AppTest) -> str:
    """Everything that a page says, as it travels."""
    return "\n".join(
        str(getattr(each, "value", "")) + str(getattr(each, "label", "")) + str(each.proto) for each in app.main
    )


def markup_of(app: AppTest) -> str:
    return "\n".join(each.proto.body for each in app.get("html"))


def test_links_of_messages_lead_to_the_page_that_they_name(look: Callable[..., AppTest]) -> None:
    app = look("alerts", run=RUN, list="incidents", incident="a#1")
    assert "page" not in app.query_params
    assert {name: app.query_params.get(name) for name in ("list", "incident")} == {
        "list": "incidents",
        "incident": "a#1",
    }
    assert [each.value for each in app.exception] == []
    assert app._registered_pages[app._finished_page_script_hash]["url_pathname"] == "alerts"
    assert look("no such page", run=RUN).query_params.get("run") == RUN


def test_an_unknown_run_is_named_and_the_same_run_stays_where_the_selector_is_cleared(
    look: Callable[..., AppTest],
) -> None:
    app = look("", run="<b>nowhere</b>")
    assert "There is no run called &lt;b&gt;nowhere&lt;/b&gt; here yet" in markup_of(app)
    assert [each.value for each in app.exception] == []
    app.session_state["run that a link names and that is not here yet"] = OTHER  # as if this were the one
    app.run()
    assert (app.selectbox(key="run").value, "here yet" in markup_of(app)) == (OTHER, False)
    app.session_state["run"] = None  # as Escape in the selector does
    del app.query_params["run"]
    app.run()
    assert app.selectbox(key="run").value == OTHER


@pytest.mark.parametrize("page", ["runs", "tokens"])  # of the home, and of a run
def test_a_page_without_runs_says_how_to_begin_and_without_a_service_that_it_is_away(
    look: Callable[..., AppTest], page: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("LOGPROBE_HOME", str(tmp_path))
    with monkeypatch.context() as patched:
        patched.setattr(data, "_looked", lambda _: data.Look({}))
        app = look(page)
        assert [each.value for each in app.exception] == []
        assert any("No runs yet" in each.value for each in app.markdown)
        assert str(tmp_path) in app.code[0].value
    monkeypatch.setattr(data, "_LOOKS", {})
    monkeypatch.setattr(data, "reader", away)
    assert any("The monitor service is not responding" in each.value for each in look(page).markdown)


def away(*_: Any, **__: Any) -> Any:
    raise ServiceUnavailableError("no answer from 127.0.0.1 of /secret/path")


@pytest.mark.parametrize(("page", "query"), VIEWS)
def test_a_page_is_drawn_names_stay_text_and_its_values_stay_without_a_service(
    look: Callable[..., AppTest], page: str, query: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    app = look(page, run=RUN, baseline=OTHER, **query)
    assert [each.value for each in (*app.exception, *app.error)] == []
    assert query or SAYS[page] in text_of(app), "add words that this page shows"
    markup = markup_of(app)
    assert not re.search(r"<(script|img src=x)", markup)
    assert not [address for address in re.findall(r'(?:href|src)="([^"]*)', markup) if address.startswith("javascript")]
    for each in [*app.markdown, *app.caption, *app.button]:
        words = str(getattr(each, "value", "")) + str(getattr(each, "label", ""))
        assert not re.search(r"(?<!\\)!?(?<!\\)\[[ab]\]\(", words), words
    monkeypatch.setattr(data, "_FRESH_SECONDS", 0.0)
    monkeypatch.setattr(data, "reader", away)
    monkeypatch.setattr(acting, "consult", away)
    app.run()
    assert [each.value for each in app.exception] == []
    said = markup_of(app)
    assert "The monitor service is not responding for" in said
    assert "/secret/path" not in text_of(app)
    if page in {"", "diagnosis"}:
        assert "raw logprobs" in said  # what was read last


# --- What one can do ---


def pressed(app: AppTest, key: str, fields: dict[str, str]) -> AppTest:
    """Fill a form in and press its button, whether the browser would let one or not."""
    for field in (*app.text_input, *app.button):
        field.proto.disabled = False
    for name, words in fields.items():
        app.text_input(key=f"{key} {name}").set_value(words)
    app.button(key=f"{key} do").set_value(True)
    return app.run()


ACTIONS = [
    ("correction", "correction stop", {"by": "ada"}),
    ("correction", "correction armed", {"by": "ada"}),
    ("diagnosis", "accept raw_logprobs", {"by": "ada", "because": "x", "up_to": "1"}),
    ("alerts", "new silence", {"by": "ada", "reason": "x", "rule": "*"}),
]


@pytest.mark.parametrize(("page", "key", "fields"), ACTIONS)
def test_what_may_not_be_done_is_refused_by_the_server_whatever_is_pressed(
    look: Callable[..., AppTest], page: str, key: str, fields: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []
    answers = acting.consult
    monkeypatch.setattr(acting, "consult", lambda action, document: done.append(action) or answers(action, document))
    monkeypatch.setattr(acting, "granted", lambda: Permission.READ_ONLY)
    app = look(page, run=RUN)
    assert app.button(key=f"{key} do").disabled
    assert any("read" in each.value for each in app.caption)  # why
    before = len(done)
    pressed(app, key, fields)
    assert {*done[before:]} <= {CHANNELS}
    with pytest.raises(ConfigurationError, match="nothing was done"):  # nor when the page drew it enabled
        acting.ask(POLICY, {"run": RUN})


def test_what_is_confirmed_is_done_once_and_a_field_may_not_be_empty(
    look: Callable[..., AppTest], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[dict[str, Any]] = []
    monkeypatch.setattr(
        acting, "ask", lambda action, document: asked.append(document) or {"actions": [{"words": "done & <b>said</b>"}]}
    )
    monkeypatch.setattr(acting, "granted", lambda: Permission.GRANTED)
    app = look("correction", run=RUN)
    stop = app.button(key="correction stop do")
    assert (stop.label, stop.disabled) == (":red[⚠ Kill switch]", False)  # it is dangerous, and looks it
    assert "⚠" not in app.button(key="correction armed do").label
    app = pressed(app, "correction stop", {"by": " "})
    assert [each.value for each in app.error] == ["Missing: your name."]
    app = pressed(app, "correction stop", {"by": "ada"})
    assert asked == [{"run": RUN, "command": "stop", "by": "ada", "force": False}]
    assert "done &amp; &lt;b&gt;said&lt;/b&gt;" in markup_of(app)
    app.run()
    assert len(asked) == 1
