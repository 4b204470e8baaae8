"""Compacts a store on the small disk that the argument names: refused beforehand, and when the disk turns out to be full in the middle."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from logprobe.collectors.errors import StoreError
from logprobe.monitor.home import Home
from logprobe.monitor.store import compaction
from logprobe.monitor.store.store import Store

if __name__ == "__main__":
    home = Home(Path(sys.argv[1]) / "home")
    with Store.open(home) as store, store.transaction() as cursor:
        cursor.execute("INSERT INTO step_metrics SELECT 'r', i, 'm', random() FROM range(500000) AS t(i)")
    disk = os.statvfs(home.path)
    (home.path / "ballast").write_bytes(bytes(disk.f_bavail * disk.f_frsize - (2 << 20)))
    for room in (compaction._ROOM, -(1 << 40)):
        compaction._ROOM = room
        before = home.database.read_bytes()
        try:
            compaction.compact(home)
        except StoreError as error:
            print(f"refused: {error}")
        unchanged = home.database.read_bytes() == before or room == 256 << 20  # the first time, its log is taken in
        print(f"unchanged: {unchanged}, beside it: {[p.name for p in home.path.iterdir() if 'compacting' in p.name]}")
