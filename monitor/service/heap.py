"""Return of freed memory to the operating system. The service's allocators otherwise keep their peak memory.

glibc gives every thread an arena and returns only the top of each. DuckDB's blocks of 256 KiB leave holes below the
top. In a service with dozens of threads, such holes were most of the resident memory, which grew during the whole
observation.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any, Final

import pyarrow as pa

_ARENA_MAX, _MMAP_THRESHOLD, _TRIM_THRESHOLD = -8, -3, -1  # of mallopt, see malloc.h
_ARENAS: Final = 4
_LARGE: Final = 128 << 10  # bytes: DuckDB's blocks get a mapping of their own, which goes back when they are freed


def settle() -> None:
    """Configure one allocator with few arenas and separate large blocks. Call it before threads start.

    Arrow's pools (mimalloc, jemalloc) keep freed memory per thread, while the system's pool can be trimmed. Without
    glibc, only the pool is set.
    """
    pa.set_memory_pool(pa.system_memory_pool())
    mallopt = _libc("mallopt")
    if mallopt is not None:
        for option, value in ((_ARENA_MAX, _ARENAS), (_MMAP_THRESHOLD, _LARGE), (_TRIM_THRESHOLD, _LARGE)):
            mallopt(option, value)


def trim() -> None:
    """Return free memory of all allocators to the operating system within milliseconds. Safe from any thread."""
    pa.default_memory_pool().release_unused()
    malloc_trim = _libc("malloc_trim")
    if malloc_trim is not None:
        malloc_trim(0)


def _libc(name: str) -> Callable[..., Any] | None:
    return getattr(ctypes.CDLL(None), name, None)
