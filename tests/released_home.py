"""``python tests/released_home.py``: a small home as today's code writes it, with its numbers, for `tests/monitor/test_store_upgrade.py`.

It becomes ``tests/data/home-COMMIT.tar.gz``. For a schema whose commit is older: with that commit's folders on ``PYTHONPATH``.
"""

from __future__ import annotations

import json
import subprocess
import tarfile
import tempfile
from pathlib import Path

from processes import eventually, record, service

from logprobe.monitor.home import Home
from logprobe.monitor.store.store import Store

DATA = Path(__file__).parent / "data"
SECONDS = 600.0
JUDGED = "SELECT (SELECT count(*) FROM diagnoses) AS diagnoses, (SELECT count(*) FROM growth_now) AS growth"


def main() -> None:
    """Records, has a service compute and judge it, and packs it."""
    commit = subprocess.check_output(["git", "rev-parse", "--short=7", "HEAD"], cwd=DATA, text=True).strip()
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
    main()
