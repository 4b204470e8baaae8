"""Every test that SECURITY.md names as a proof exists, and every switch that docs/cluster.md names is one."""

import re

from logprobe.collectors import environment


def test_every_boundary_names_a_test_that_exists(repository):
    table = (repository / "SECURITY.md").read_text(encoding="utf-8").partition("## Boundaries and their tests")[2]
    rows = [line for line in table.splitlines() if line.startswith("| ") and not line.startswith("| boundary")]
    assert len(rows) >= 15
    for row in rows:
        named = re.findall(r"`(tests/[\w/.]+\.py)(?:::(\w+))?`", row)
        assert named, f"no test in: {row}"
        for file, name in named:
            text = (repository / file).read_text(encoding="utf-8")
            assert re.search(rf"^def {name}\(" if name else "^def test_", text, re.MULTILINE), f"{file}::{name}"


def named(*places):
    """Variables of logprobe that the texts at `places` name."""
    files = [file for place in places for file in (place.rglob("*.*") if place.is_dir() else [place])]
    texts = [
        file.read_text(encoding="utf-8")
        for file in files
        if file.suffix in {".py", ".md", ".sh", ".yaml", ".yml", ".service"}
    ]
    return {name for text in texts for name in re.findall(r"\bLOGPROBE_[A-Z][A-Z_]+\b", text)}


def test_every_environment_variable_is_declared(repository):
    assert len({*environment.VARIABLES, *environment.PASSED}) <= 11
    parts = [repository / name for name in ("collectors", "monitor", "alerts", "app")]
    known = {*environment.VARIABLES, *environment.PASSED}
    assert named(*parts) - known == {"LOGPROBE_RUN_NAME"}, "an example of a mistake"


def test_no_page_names_another_variable(repository):
    named_there = named(repository / "docs", repository / "README.md", repository / "SECURITY.md")
    assert named_there - {*environment.VARIABLES, *environment.PASSED} == {"LOGPROBE_RUN_NAME"}
