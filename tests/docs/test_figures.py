"""The pictures of the migration's story: drawn from the recorded runs, as the verdicts say, and up to date."""

from __future__ import annotations

import importlib.util
import json
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

from logprobe.monitor.compare import Comparison, Places

NUMBER = re.compile(r"-?\d+(?:\.\d+)?")


@pytest.fixture(scope="module")
def figures(repository: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("figures", repository / "docs" / "figures.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["figures"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def found(figures: ModuleType, recorded_runs: Path) -> Comparison:
    with Places(str(recorded_runs)) as places:
        return figures.compared(places)


def test_the_pictures_in_the_documentation_are_those_that_the_code_draws(
    figures: ModuleType, found: Comparison
) -> None:
    for figure in figures.FIGURES:
        kept, now = (figures.IMAGES / f"{figure.name}.svg").read_text(), figures.drawn(figure, found)
        assert NUMBER.sub("", kept) == NUMBER.sub("", now), figure.name
        ours, theirs = ([float(number) for number in NUMBER.findall(text)] for text in (kept, now))
        # Pixels; the last bits of a sum are not a picture's
        assert ours == pytest.approx(theirs, abs=0.21), figure.name


def test_a_picture_stands_for_itself_and_stays_small(figures: ModuleType) -> None:
    for figure in figures.FIGURES:
        text = (figures.IMAGES / f"{figure.name}.svg").read_text()
        assert text.startswith('<svg xmlns="http://www.w3.org/2000/svg"')
        assert not re.search(r"<script|<image|href|@import|url\(", text)
        assert figure.alt in text
        assert len(text) < 150_000


def test_the_picture_of_the_rescue_is_the_one_that_the_code_draws(figures: ModuleType) -> None:
    kept = json.loads((figures.IMAGES / "rescue.json").read_text())
    assert (figures.IMAGES / "rescue.svg").read_text() == figures.rescue(kept)
    results = [{"arm": "none", "reward": [0.5] * 9, "k3": [1e-3] * 8 + [2.34567]}]
    assert figures.thinned(results) == {"none": {"reward": [[0.5, 0.5]], "k3": [[0.001, 2.35]]}}
