"""Runs by the names that people give them: of the data directory, of another, in a folder, in a bundle."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

from logprobe.app.surface.arguments import require_run
from logprobe.monitor.compare import Place, Places
from logprobe.monitor.compare.places import in_files


@contextmanager
def alone(places: Places, name: str) -> Iterator[Place]:
    """Find the run called `name`; one in files is open inside the block only, whose store takes memory.

    Raises as `find` does.
    """
    with Places(None) if in_files(name) else nullcontext(places) as found:
        yield find(found, name)


def find(places: Places, name: str) -> Place:
    """Find the run called `name`. Raises `ConfigurationError`, with near matches, when it is not there."""
    place = places.find(name)
    require_run(place.run, place.run_names())
    return place
