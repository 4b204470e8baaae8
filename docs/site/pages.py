"""MkDocs hook: adds the pages that are not in docs/ (README as the home page, policy, changelog), and tables to those that are."""

from __future__ import annotations

import re
import sys
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Final

from mkdocs.structure.files import File, Files

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig

ROOT: Final = Path(__file__).resolve().parents[2]
# Page of the site → file in the repository's root.
FROM_ROOT: Final = {
    "index.md": "README.md",
    "security-policy.md": "SECURITY.md",
    "contributing.md": "CONTRIBUTING.md",
    "changelog.md": "CHANGELOG.md",
    "results.md": "tests/RESULTS.md",
}
_SOURCE: Final = ROOT / ".artifacts" / "site-source" / "logprobe"


def on_startup(**_: object) -> None:
    """Lay the folders out as they install, `X/` as `logprobe.X`, before a plugin looks for docstrings there."""
    _SOURCE.mkdir(parents=True, exist_ok=True)
    (_SOURCE / "__init__.py").touch()  # a namespace package of links is not found
    for part in ("collectors", "monitor", "alerts", "app"):
        link = _SOURCE / part
        if not link.is_symlink():
            link.symlink_to(ROOT / part)
    sys.path.insert(0, str(Path(__file__).parent))  # `tables`


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the generated pages."""
    for page, name in FROM_ROOT.items():
        files.append(File.generated(config, page, content=_adapted((ROOT / name).read_text(encoding="utf-8"))))
    return files


def on_page_markdown(markdown: str, **_: object) -> str:
    """Puts tables in their places. Links out of docs/ lead to the pages made from these files."""
    for page, name in FROM_ROOT.items():
        markdown = re.sub(rf"\]\(\.\./{re.escape(name)}(?=[)#])", f"]({page}", markdown)
    if "<!-- table: " in markdown:
        tables = import_module("tables")
        markdown = tables.filled(markdown, tables.tables())
    return markdown


def _adapted(text: str) -> str:
    """A file of the root, with links as seen from docs/."""
    text = re.sub(r"\]\(docs/", "](", text)
    for page, name in FROM_ROOT.items():
        text = re.sub(rf"\]\({re.escape(name)}(?=[)#])", f"]({page}", text)
    return text
