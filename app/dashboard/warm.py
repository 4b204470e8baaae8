"""Done before the server answers: loading what the first page stands on, so that whoever opens it waits for the page alone."""

from __future__ import annotations

import gc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib import import_module

from logprobe.app.dashboard.assets import prepare


@asynccontextmanager
async def warmed(_: object) -> AsyncIterator[None]:
    """A lifespan of the server. Not in a thread beside it: two threads that import the same packages can get in each other's way."""
    load()
    yield


def load() -> None:
    """Loads the first page's modules, and compresses the files that it asks for."""
    import_module("logprobe.app.dashboard.pages.overview")
    prepare()
    # Streamlit has all garbage collected after every run of a page: what is loaded by now stays, and need not be looked at again.
    gc.collect()
    gc.freeze()
