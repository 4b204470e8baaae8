"""What every integration of a training or sampling framework promises, asked of each through a stand-in of its loop.

What only one of them can do is in `tests/collectors/integrations`; `make campaign NAME=frameworks` trains with the
frameworks themselves.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from conformance.hf_hosts import MsSwift, Trl, TrlAsync
from conformance.host import RUN, Host, closing
from conformance.other_hosts import Areal, OpenRlhf, PipelineRl, Rllm, Roll, SkyRl
from conformance.sglang_host import SgLang
from conformance.slime_hosts import Miles, Slime, Vime
from conformance.verl_hosts import VerlV0, VerlV1
from spool_contents import by_sample, health_events, rows

from logprobe.collectors.correction import CorrectionConfig, correct
from logprobe.collectors.correction.presets import preset
from logprobe.collectors.directives import DirectiveFile, Directives
from logprobe.collectors.integrations import correcting, ms_swift, slime, trl, verl
from logprobe.collectors.integrations.frameworks import FRAMEWORKS
from logprobe.collectors.recorder.recorder import Recorder

HOSTS: tuple[type[Host], ...] = (
    Trl, TrlAsync, MsSwift, VerlV0, VerlV1, Slime, Vime, Miles, SkyRl, PipelineRl, OpenRlhf, Roll, Areal, Rllm, SgLang,
)  # fmt: skip
Close = Callable[[], None]


def of(hosts: Any) -> Any:
    return pytest.mark.parametrize("kind", list(hosts), ids=lambda kind: kind.__name__)


@pytest.fixture
def close(monkeypatch: pytest.MonkeyPatch, home: Path) -> Close:
    """The environment of a run; → closes every recorder that was made in it."""
    monkeypatch.setenv("LOGPROBE_HOME", str(home))
    monkeypatch.setenv("LOGPROBE_RUN", RUN)
    return closing(monkeypatch)


def versions(spans: Any) -> list[str]:
    return [span["version"] for span in spans or [] if span["version"] is not None]


def assert_recorded(home: Path, kind: str, expected: dict[str, dict[str, Any]]) -> None:
    found = by_sample(home, kind)
    assert set(found) == set(expected)
    for name, columns in expected.items():
        for column, value in columns.items():
            there = found[name][column]
            there = versions(there) if column in {"spans", "rollout_versions"} else there
            assert there == (pytest.approx(value) if column == "reward" else value), (name, column)


def test_every_framework_that_is_known_is_asked() -> None:
    assert {kind.framework for kind in HOSTS} == {framework.name for framework in FRAMEWORKS}


@of(HOSTS)
def test_a_step_is_recorded_as_its_host_holds_it(kind: type[Host], close: Close, home: Path, monkeypatch: Any) -> None:
    host = kind(monkeypatch)
    host.begin()
    host.step()
    close()
    assert_recorded(home, "training", host.trained())
    assert_recorded(home, "rollout", host.sampled())
    assert tuple(row["version"] for row in rows(home, "weights")) == host.marks
    assert [(row["step"], dict(row["scalars"])) for row in rows(home, "step")] == [*host.logged.items()]
    configured = [json.loads(row["document"]) for row in rows(home, "config") if row["kind"] == "trainer_config"]
    assert len(configured) == bool(host.configured)
    assert all(document.items() >= host.configured.items() for document in configured)
    events = health_events(home)
    assert set(events) <= {"self_test", "started", "training_begins", "heartbeat", "closed"}
    assert "is recorded" in events["self_test"][0]["message"]


@of(HOSTS)
def test_without_a_home_records_lie_in_the_data_directory_of_the_user(
    kind: type[Host], close: Close, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    host = kind(monkeypatch)
    monkeypatch.setenv("LOGPROBE_HOME", "somewhere")  # else plugins do not even look
    host.begin() if not host.repeats else None
    monkeypatch.delenv("LOGPROBE_HOME")
    host.begin() if host.repeats else None
    host.step()
    close()
    assert rows(tmp_path / "logprobe", "training") or rows(tmp_path / "logprobe", "rollout")  # an engine records these


@pytest.mark.parametrize(("kind", "key"), [(kind, key) for kind in HOSTS for key in kind.needed + kind.spared])
def test_a_renamed_key_is_named_and_what_is_lost_is_counted(
    kind: type[Host], key: str, close: Close, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a later version, under which the host's own loop goes on. What is not needed costs itself only."""
    host = kind(monkeypatch)
    host.begin()
    host.step(renamed=key)
    close()
    needed = key in host.needed
    assert len(rows(home, "training")) == (0 if needed else host.count)
    reports = health_events(home)["missing_key"]
    assert all(f"the batch has no {key}" in report["message"] for report in reports)
    assert {report["severity"] for report in reports} == {"warning"}
    assert sum(report["sequences"] or 0 for report in reports) == (host.count if needed else 0)


@of(kind for kind in HOSTS if kind.lacks)
def test_a_version_that_is_not_known_is_left_alone_and_that_is_said(
    kind: type[Host], close: Close, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = kind(monkeypatch)
    host.later()
    before = dict(vars(host.wrapped()))
    host.begin()
    after = {name: value for name, value in vars(host.wrapped()).items() if not name.startswith("_logprobe")}
    assert after == before
    close()
    said = [report for report in health_events(home)["self_test"] if host.lacks in report["message"]]
    assert said
    assert {report["severity"] for report in said} == {"warning"}


@of(HOSTS)
def test_what_fails_in_our_part_is_counted_and_the_host_goes_on(
    kind: type[Host], close: Close, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any, **__: Any) -> bool:
        raise RuntimeError("ours")

    host = kind(monkeypatch)
    host.begin()
    for name in ("training", "rollout"):
        monkeypatch.setattr(Recorder, name, fail)
    host.step()
    close()
    assert "internal_error" in health_events(home)


@of(kind for kind in HOSTS if kind.repeats)
def test_beginning_twice_records_once(kind: type[Host], close: Close, home: Path, monkeypatch: Any) -> None:
    host = kind(monkeypatch)
    host.begin()
    host.begin()
    host.step()
    close()
    assert_recorded(home, "training", host.trained())
    assert [row["step"] for row in rows(home, "step")] == [*host.logged]


def corrected(host: Host, config: CorrectionConfig, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("logprobe.collectors.switch._FIRST_SECONDS", 90.0)  # for the first look, on a busy machine
    DirectiveFile(home, RUN).write(Directives(RUN).issue(host.at, config, "a test"), None)
    host.correction = True
    host.begin()
    host.step()


@of(kind for kind in HOSTS if kind.corrects)
def test_a_correction_is_applied_as_stated_and_acknowledged(
    kind: type[Host], close: Close, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    host, config = kind(monkeypatch), preset("tis", is_upper=1.005)
    corrected(host, config, home, monkeypatch)
    close()
    rollout, trainer, mask = host.sides()
    weights = correct(config, rollout, trainer, mask).weights
    if isinstance(weights, list):
        weights, mask = torch.cat(weights), torch.cat(mask)
    assert host.applied is not None
    assert (host.applied * mask).numpy() == pytest.approx((weights * mask).numpy(), rel=1e-6)
    assert {row["step"] for row in rows(home, "step") if row["correction"]} == {host.at}


@of(kind for kind in HOSTS if kind.corrects)
def test_a_correction_that_the_loss_cannot_do_is_refused_and_the_hosts_own_stays(
    kind: type[Host], close: Close, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (correcting, ms_swift, slime, trl, verl):  # some hosts import their adapter again
        monkeypatch.setattr(module, "unmet", lambda *_, **__: "it cannot be done here")
    host = kind(monkeypatch)
    corrected(host, preset("tis"), home, monkeypatch)
    close()
    assert host.applied is None
    assert "it cannot be done here" in health_events(home)["correction_impossible"][0]["message"]
    assert not [row for row in rows(home, "step") if row["correction"]]
    assert_recorded(home, "training", host.trained())
