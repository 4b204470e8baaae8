"""Every picture that docs/pictures.py takes is checked in, small, and shown; the tutorial shows no other."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path

from PIL import Image


def test_the_pictures_of_the_tutorial_are_those_that_the_command_takes(repository: Path) -> None:
    spec = importlib.util.spec_from_file_location("pictures", repository / "docs" / "pictures.py")
    pictures = importlib.util.module_from_spec(spec)
    sys.modules["pictures"] = pictures  # where dataclasses look up what they belong to
    spec.loader.exec_module(pictures)
    pages = [(repository / name).read_text(encoding="utf-8") for name in ("README.md", "docs/tutorial.md")]
    shown = {name for page in pages for name in re.findall(r"\((?:docs/)?images/([\w-]+)\.png\)", page)}
    assert shown == {picture.name for picture in pictures.PICTURES}
    for name in shown:
        file = repository / "docs" / "images" / f"{name}.png"
        assert file.stat().st_size <= pictures.LARGEST
        with Image.open(file) as image:
            assert image.width == pictures._WIDTH
