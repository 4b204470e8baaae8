"""``python tests/support/released_home.py [COMMIT]``: a small home as that commit's code writes it, for `tests/monitor/test_store_upgrade.py`.

It becomes ``tests/data/home-COMMIT.tar.gz``, with the numbers of that code. Without a commit: of the files as they are.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

from processes import eventually, record, service

from logprobe.monitor.home import Home
from logprobe.monitor.store.store import Store

DATA = Path(__file__).parents[1] / "data"
SECONDS = 600.0
PARTS = ("app", "alerts", "monitor", "collectors")
JUDGED = "SELECT (SELECT count(*) FROM diagnoses) AS diagnoses, (SELECT count(*) FROM growth_now) AS growth"


def of(commit: str) -> None:
    """Runs this module on the product of a commit, in a process of its own."""
    root = DATA.parents[1]
    with tempfile.TemporaryDirectory() as folder:
        archive, links = Path(folder, "source.tar"), Path(folder, "links", "logprobe")
        subprocess.run(["git", "archive", "-o", archive, commit, *PARTS], cwd=root, check=True)
        with tarfile.open(archive) as files:
            files.extractall(folder, filter="data")
        links.mkdir(parents=True)
        for part in PARTS:
            (links / part).symlink_to(Path(folder, part))
        short = subprocess.check_output(["git", "rev-parse", "--short=7", commit], cwd=root, text=True).strip()
        environment = {**os.environ, "PYTHONPATH": str(links.parent)}
        subprocess.run([sys.executable, __file__, "--as", short], env=environment, check=True)


def write(commit: str) -> None:
    """Records, has a service compute and judge it, and packs it."""
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder) / f"home-{commit}"
        record(home)
        with service(home) as reader:
            reader.ingest()
            eventually(lambda: all(reader.query(JUDGED).to_pylist()[0].values()), "it is judged", SECONDS)
        with Store.open(Home(home)) as store:
            numbers = store.query("SELECT step, metric, value FROM step_metrics WHERE value IS NOT NULL ORDER BY ALL")
            schema = store.query("SELECT max(version) AS version FROM schema_versions")["version"][0].as_py()
            verdict = store.query("SELECT verdict FROM diagnoses")["verdict"][0].as_py()
        metrics = [[row["step"], row["metric"], row["value"]] for row in numbers.to_pylist()]
        (home / "numbers.json").write_text(json.dumps({"schema": schema, "verdict": verdict, "metrics": metrics}))
        (home / "service.lock").unlink()
        with tarfile.open(DATA / f"{home.name}.tar.gz", "w:gz") as archive:
            archive.add(home, home.name)
    print(f"schema {schema}, {len(metrics)} numbers: {DATA / home.name}.tar.gz")


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["--as", name]:
            write(name)
        case [name]:
            of(name)
        case _:
            write(subprocess.check_output(["git", "rev-parse", "--short=7", "HEAD"], cwd=DATA, text=True).strip())
