"""docs/examples/grafana on a real Prometheus that scrapes a real service: `make campaign NAME=prometheus`.

Every expression of the dashboard, of its variables and of the rules is asked of Prometheus; Grafana itself is in no package index that a
test could install it from, so the dashboard's file is checked as far as that goes.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from processes import end, eventually
from training_calls import rows

from logprobe.collectors.recorder.recorder import Recorder

EXAMPLES = Path(__file__).resolve().parents[2] / "docs" / "examples" / "grafana"
DASHBOARD = json.loads((EXAMPLES / "logprobe.json").read_text(encoding="utf-8"))
RUN = "odd-run"
EMPTY_HERE = {"logprobe_reward", "logprobe_weight_lag_mean"}  # the run records neither


def program(name: str) -> str:
    found = os.environ.get(name.upper()) or shutil.which(name)
    assert found, f"no {name}: run `make campaign NAME=prometheus`, or set {name.upper()} to its path"
    return found


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Address of a Prometheus that has scraped a run whose log-probs are of another model."""
    folder = tmp_path_factory.mktemp("prometheus")
    home, metrics, port = folder / "home", free_port(), free_port()
    settings = yaml.safe_load((EXAMPLES / "prometheus.yml").read_text(encoding="utf-8"))
    settings["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
    settings["scrape_configs"][0]["static_configs"] = [{"targets": [f"127.0.0.1:{metrics}"]}]
    (folder / "prometheus.yml").write_text(yaml.safe_dump(settings))
    shutil.copy(EXAMPLES / "rules.yml", folder)
    home.mkdir()
    (home / "logprobe.yaml").write_text(f"server: {{health_port: {metrics}}}\n")
    service = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "logprobe.app.cli",
            "up",
            "--no-app",
            "--home",
            str(home),
        ],
        stderr=subprocess.PIPE,
    )
    server = subprocess.Popen(
        [program("prometheus"), f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data",
         f"--web.listen-address=127.0.0.1:{port}"],
        stderr=subprocess.PIPE,
    )  # fmt: skip
    address = f"http://127.0.0.1:{port}"
    try:
        with Recorder(home, RUN, component="test") as recorder:
            record(recorder, 30)
            eventually(
                lambda: answers(address, f'logprobe_severity{{run="{RUN}",logprobe_severity="critical"}} == 1'),
                "the scrape",
            )
            yield address
    finally:
        end(server)
        end(service)


def record(recorder: Recorder, steps: int) -> None:
    for step in range(steps):
        call = rows(step, (4, 32), spread=3.0)
        recorder.training(**call, current_logprobs=call["trainer_logprobs"])
    assert recorder.flush()


def asked(address: str, path: str, **query: str) -> Any:
    url = f"{address}/api/v1/{path}?{urllib.parse.urlencode(query)}"
    with urllib.request.urlopen(url, timeout=30) as answer:
        return json.load(answer)["data"]


def answers(address: str, expression: str) -> list[Any]:
    try:
        return list(asked(address, "query", query=expression)["result"])
    except (urllib.error.URLError, ConnectionError):  # it is still starting
        return []


def expressions() -> list[tuple[str, str]]:
    """Title and expression of everything that the dashboard asks, its variables replaced as Grafana does."""
    found = [(panel["title"], target["expr"]) for panel in DASHBOARD["panels"] for target in panel["targets"]]
    found += [(each["name"], each["expr"]) for each in DASHBOARD["annotations"]["list"]]
    return [(title, text.replace("$run", ".*").replace("$pair", "backend")) for title, text in found]


def test_every_expression_of_the_dashboard_has_an_answer(prometheus: str) -> None:
    for title, expression in expressions():
        assert "$" not in expression, title
        eventually(lambda e=expression, t=title: answers(prometheus, e) or may_be_empty(t, e), f"{title}: {expression}")
    (severity,) = answers(prometheus, dict(expressions())["Severity"])
    assert (severity["metric"], float(severity["value"][1])) == ({"run": RUN}, 3.0)
    assert asked(prometheus, "label/run/values", **{"match[]": "logprobe_step"}) == [RUN]


def may_be_empty(title: str, expression: str) -> bool:
    return title in {"critical", "Firing alerts"} or any(name in expression for name in EMPTY_HERE)


def test_every_rule_is_evaluated_and_the_ill_run_is_seen(prometheus: str) -> None:
    def rules() -> list[Any]:
        (group,) = asked(prometheus, "rules")["groups"]
        return list(group["rules"])

    eventually(lambda: all(rule["health"] == "ok" for rule in rules()), "all rules to be evaluated")
    eventually(lambda: any(rule["alerts"] for rule in rules()), "an alert")
    found = {rule["name"]: rule for rule in rules()}
    assert found["LogprobeRunCritical"]["state"] in {"pending", "firing"}
    (alert,) = found["LogprobeRunCritical"]["alerts"]
    assert alert["annotations"]["summary"] == f"{RUN} is critical"
    assert {name for name, rule in found.items() if rule["state"] != "inactive"} == {"LogprobeRunCritical"}


def test_promtool_takes_rules_and_configuration_and_refuses_others(tmp_path: Path) -> None:
    for command, name in (("rules", "rules.yml"), ("config", "prometheus.yml")):
        done = subprocess.run(
            [program("promtool"), "check", command, name], cwd=EXAMPLES, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
    (tmp_path / "rules.yml").write_text((EXAMPLES / "rules.yml").read_text().replace("== 1", "=== 1"))
    broken = [program("promtool"), "check", "rules", str(tmp_path / "rules.yml")]
    assert subprocess.run(broken, capture_output=True, check=False).returncode != 0
