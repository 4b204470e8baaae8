"""The dashboard and the rules of docs/examples/grafana: they ask for what /metrics has. `make campaign NAME=prometheus` runs them."""

from __future__ import annotations

import json
import re
from pathlib import Path

import yaml

from logprobe.monitor.judgement import SEVERITIES
from logprobe.monitor.service.jobs import Job
from logprobe.monitor.service.scrape import KEYS, exposition
from logprobe.monitor.store.store import Store

EXAMPLES = Path(__file__).resolve().parents[2] / "docs" / "examples" / "grafana"


def asked() -> str:
    files = (EXAMPLES / name for name in ("logprobe.json", "rules.yml"))
    return "".join(file.read_text(encoding="utf-8") for file in files)


def test_they_ask_for_metrics_that_there_are(store: Store) -> None:
    kinds = dict(re.findall(r"^# TYPE (\w+) (\w+)$", exposition(store, list[Job]()), flags=re.MULTILINE))
    names = {f"{name}_total" if kind == "counter" else name for name, kind in kinds.items()}
    wanted = set(re.findall(r"\blogprobe_\w+", asked()))
    assert wanted - names == set()
    assert len(wanted) >= 15
    assert set(re.findall(r'logprobe_severity=\\?"(\w+)', asked())) <= set(SEVERITIES)


def test_rules_judge_no_run_by_its_metrics() -> None:
    """The limits of logprobe's own rules are in one place; a second one here would disagree with it."""
    (group,) = yaml.safe_load((EXAMPLES / "rules.yml").read_text(encoding="utf-8"))["groups"]
    used = set(re.findall(r"\blogprobe_\w+", " ".join(rule["expr"] for rule in group["rules"])))
    assert "logprobe_severity" in used
    assert used & {f"logprobe_{key.rpartition('.')[2]}" for key in KEYS} == set()


def test_panels_are_where_nothing_else_is() -> None:
    dashboard = json.loads((EXAMPLES / "logprobe.json").read_text(encoding="utf-8"))
    taken: set[tuple[int, int]] = set()
    for panel in dashboard["panels"]:
        at = panel["gridPos"]
        place = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not taken & place, panel["title"]
        assert at["x"] + at["w"] <= 24
        taken |= place
    assert len({panel["id"] for panel in dashboard["panels"]}) == len(dashboard["panels"])
    variables = {each["name"] for each in dashboard["templating"]["list"]}
    assert set(re.findall(r"\$\{?(?!__)(\w+)", json.dumps(dashboard))) == variables


def test_the_files_are_yaml() -> None:
    for file in EXAMPLES.rglob("*.yml"):
        assert isinstance(yaml.safe_load(file.read_text(encoding="utf-8")), dict), file.name
