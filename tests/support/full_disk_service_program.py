"""A service on a disk that is full and later is not; run in a mount namespace of its own: `python full_disk_service_program.py FOLDER`."""

from __future__ import annotations

import sys
from pathlib import Path

from full_disk_program import fill
from operator_homes import health, is_well, unwell
from processes import connected, end, eventually, record, start_service

if __name__ == "__main__":
    disk = Path(sys.argv[1])
    home = disk / "home"
    record(home)
    process = start_service(home)
    try:
        with connected(home) as reader:
            reader.ingest()
            eventually(lambda: is_well(home), "/healthz is well")
            fill(disk / "filler")
            print(unwell(home))
            (disk / "filler").unlink()
            try:
                eventually(lambda: is_well(home), "/healthz is well again")
            except AssertionError:
                print(health(home))
                raise
    finally:
        end(process)
