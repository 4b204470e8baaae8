"""The allocators of a process with many threads, as the service has: what was freed leaves the process."""

from __future__ import annotations

import subprocess
import sys

# Threads fill arenas of their own with blocks and free all but a few of them, so that nothing lies free at the top of an arena.
PROGRAM = """
import ctypes, os, sys, threading
from logprobe.monitor.service import heap

libc = ctypes.CDLL(None)
libc.malloc.restype, libc.malloc.argtypes, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_size_t], [ctypes.c_void_p]
if sys.argv[1] == "settled":
    heap.settle()

def resident():
    return int(open("/proc/self/statm").read().split()[1]) * os.sysconf("SC_PAGE_SIZE") >> 20

def fill():
    blocks = [libc.malloc(100_000) for _ in range(200)]
    for block in blocks:
        ctypes.memset(block, 1, 100_000)
    for block in blocks[:-1]:
        libc.free(block)
    barrier.wait()

def arenas():
    starts = (int(line.split("-")[0], 16) for line in open("/proc/self/maps"))
    return sum(start % (64 << 20) == 0 for start in starts)

barrier = threading.Barrier(13)
before = resident()
threads = [threading.Thread(target=fill) for _ in range(12)]
for thread in threads:
    thread.start()
barrier.wait()
for thread in threads:
    thread.join()
held = resident() - before
heap.trim()
print(held, resident() - before, arenas())
"""


def run(how: str) -> tuple[int, int, int]:
    """MiB held after all but 12 of 2,400 blocks were freed, the same after `trim`, and the arenas there are."""
    done = subprocess.run([sys.executable, "-c", PROGRAM, how], check=True, capture_output=True, text=True, timeout=120)
    held, left, arenas = map(int, done.stdout.split())
    return held, left, arenas


def test_freed_memory_goes_back_to_the_system_and_threads_share_a_few_arenas() -> None:
    held, left, arenas = run("as it is")
    assert held > 40  # else this machine's allocator needs no help, and the test shows nothing
    assert left < held / 4
    assert run("settled")[2] < arenas
