"""Finds phrases of the wordlist in every tracked text file: `python tests/wording/check.py`, part of `make lint`.

Prints ``file:line: phrase; write …`` for each, and exits with 1 if there is any.
"""

from __future__ import annotations

import fnmatch
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import yaml

ROOT: Final = Path(__file__).resolve().parents[2]
WORDLIST: Final = Path(__file__).with_name("wordlist.yaml")
KINDS: Final = ("*.py", "*.md", "*.sql", "*.yaml", "*.yml", "*.toml", "*.js", "*.css", "Makefile")
LEFT_OUT: Final = (
    "CHANGELOG.md",
    "sample_data/*",
    "app/dashboard/vendor/*",
    "tests/wording/*",
)  # history, recordings, others' code, the list


def texts(root: Path) -> list[Path]:
    """Every tracked text file that is looked at, relative to `root`."""
    named = subprocess.run(
        ["git", "ls-files", "-z", *KINDS], cwd=root, capture_output=True, text=True, check=True
    ).stdout
    files = [name for name in named.split("\0") if name and not any(fnmatch.fnmatch(name, left) for left in LEFT_OUT)]
    return [Path(name) for name in files if (root / name).is_file()]


def found_in(text: str, name: str, phrases: list[dict[str, Any]]) -> Iterator[tuple[int, str, str]]:
    """(line, phrase, what to write) of each phrase; also where a line break or a quotation mark falls into it."""
    joined = re.sub(r'["\']?\n\s*(?:#|//|--|\*)?\s*f?["\']?', lambda gap: " " + "\0" * (len(gap.group()) - 1), text)
    for phrase in phrases:
        if any(fnmatch.fnmatch(name, file) for file in phrase.get("except", {})):
            continue
        pattern = re.compile(phrase["find"].replace(" ", "[ \0]+"), re.IGNORECASE)
        for match in pattern.finditer(joined):
            yield text.count("\n", 0, match.start()) + 1, match.group().replace("\0", ""), phrase["say"]


def main(root: Path = ROOT) -> int:
    """Prints what was found; → 1 if anything was."""
    phrases = yaml.safe_load(WORDLIST.read_text(encoding="utf-8"))
    lines = [
        f"{name}:{line}: “{words}”; write: {say}"
        for name in texts(root)
        for line, words, say in sorted(found_in((root / name).read_text(encoding="utf-8"), str(name), phrases))
    ]
    print("\n".join(lines), end="\n" if lines else "")
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main())
