"""The module map of the site, written from the modules' own docstrings, so that it names every module and is never out of date."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Final

# In the order in which a record passes through them.
LAYERS: Final = ("collectors", "monitor", "alerts", "app")
_END: Final = re.compile(r"(?<=[.!?])\s+(?=[A-Z`*])")
_INTRODUCTION: Final = """# Modules

Every module in a sentence, the first of its docstring. [architecture.md](architecture.md) says how they work together.
"""


def module_map(root: Path) -> str:
    """The page as Markdown, for a checkout at `root`. Raises `ValueError` if a module does not say what it is for."""
    return "\n".join([_INTRODUCTION, *(_layer(root, root / layer) for layer in LAYERS)])


def purpose(file: Path) -> str:
    """The first sentence of a module's docstring. Raises `ValueError` if it has none."""
    paragraph = (ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or "").partition("\n\n")[0]
    sentence = _END.split(" ".join(paragraph.split()), maxsplit=1)[0]
    if not sentence:
        raise ValueError(f"{file} has no docstring; say in its first sentence what the module is for")
    return sentence


def _layer(root: Path, layer: Path) -> str:
    folders = sorted({file.parent for file in layer.rglob("*.py")})
    return "\n".join([f"## {layer.name}", "", *(_folder(root, folder) for folder in folders)])


def _folder(root: Path, folder: Path) -> str:
    heading = [] if folder.parent == root else [f"### {folder.relative_to(root)}", ""]
    package = folder / "__init__.py"
    about = [purpose(package), ""] if package.exists() else []
    modules = [f"- `{file.name}`: {purpose(file)}" for file in sorted(folder.glob("*.py")) if file != package]
    return "\n".join([*heading, *about, *modules, ""])
