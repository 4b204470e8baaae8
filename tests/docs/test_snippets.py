"""What the documentation shows can be done: commands parse, those that only read work on recorded runs, imports resolve, Python and YAML are valid, links lead somewhere."""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from processes import understood

from logprobe.app.cli import main

ROOT = Path(__file__).resolve().parents[2]
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "SECURITY.md",
    ROOT / "tests" / "RESULTS.md",
    *sorted((ROOT / "docs").glob("**/*.md")),
]
NAMES = [str(page.relative_to(ROOT)) for page in PAGES]
READING = ("runs", "show", "compare", "export", "alerts list", "alerts try", "correct", "store check", "store delete")
# Names of the documentation → recorded runs.
RUNS = {
    **dict.fromkeys(("RUN", "my-run", "rescue", "grpo"), "v1-initial"),
    **dict.fromkeys(("OTHER_RUN", "rescue-without"), "v0-reference"),
}
ABSENT = ("/data/", "./recorded", ".yaml", "tensorboard", "trackio", "armed", "off")  # files, packages; what acts
# Not a whole command: alternatives, optional parts or an ellipsis are for people.
FOR_PEOPLE = re.compile(r"[\[\]…|]|\.\.\.")


def blocks(text: str, language: str) -> Iterator[str]:
    for found in re.finditer(rf"^( *)```{language}\n(.*?)^ *```", text, re.MULTILINE | re.DOTALL):
        yield re.sub(rf"^{found[1]}", "", found[2], flags=re.MULTILINE)


def commands(text: str) -> Iterator[list[str]]:
    """`logprobe …` in indented lines, without comments; a line that ends in a backslash goes on in the next one."""
    for line in re.sub(r"\\\n\s*", "", text).splitlines():
        found = re.match(r"\s{4}(?:LOGPROBE_\S+ )*logprobe (.*)", line)
        if found and not FOR_PEOPLE.search(without_comment := re.split(r"\s{4,}(?=\S)|\s+#", found[1])[0]):
            yield shlex.split(without_comment)


def test_there_are_commands_to_check() -> None:
    assert sum(len(list(commands(page.read_text(encoding="utf-8")))) for page in PAGES) > 40


def shown() -> Iterator[list[str]]:
    """Reading commands, each once, with names of recorded runs."""
    seen = set()
    for page in PAGES:
        for words in commands(page.read_text(encoding="utf-8")):
            named = [RUNS.get(word, word) for word in words]
            reads = words[0] in READING or " ".join(words[:2]) in READING
            if reads and not any(part in word for word in words for part in ABSENT) and tuple(named) not in seen:
                seen.add(tuple(named))
                yield named


@pytest.mark.parametrize("words", list(shown()), ids=" ".join)
def test_a_documented_command_works(
    words: list[str],
    first_steps: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    code = main([*words, "--home", str(first_steps)])
    said = capsys.readouterr()
    assert code in {0, 2}, said.err
    assert said.out or said.err


def anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_a_page_is_valid(page: Path) -> None:
    """Commands parse, Python is valid and its imports resolve, YAML is valid, links lead somewhere, prose fits 120 columns.

    Tables, code and links that cannot be broken may be wider.
    """
    text = page.read_text(encoding="utf-8")
    for words in commands(text):
        understood(words)  # raises when it does not
    for block in blocks(text, "python"):
        for node in ast.walk(ast.parse(block)):
            ours = isinstance(node, ast.ImportFrom) and (node.module or "").startswith("logprobe")
            if ours or (isinstance(node, ast.Import) and node.names[0].name.startswith("logprobe")):
                exec(compile(ast.Module([node], []), str(page), "exec"), {})
    for block in blocks(text, "ya?ml"):
        assert yaml.safe_load(block) is not None
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if not re.match(r"https?://|mailto:", target):
            file, _, anchor = target.partition("#")
            linked = (page.parent / file).resolve() if file else page
            assert linked.exists(), target
            assert not anchor or anchor in anchors(linked), target
    prose = re.sub(r"```.*?```", "", text, flags=re.DOTALL).splitlines()
    assert not [line for line in prose if len(line) > 120 and not line.startswith(("|", "    ", "!["))]
