"""Records the twin of the demo's run, which nothing corrects; `logprobe.app.demo.training` is both of them.

python sample_data/rescue.py --overwrite    # records app/demo/rescue-without; under a minute
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path
from typing import Final

import numpy as np
from tools.exporting import export_run

from logprobe.app.demo.training import FLUSH_SECONDS, ONSET, SEED, STEPS, TWIN, train
from logprobe.collectors.errors import LogprobeError
from logprobe.collectors.recorder.recorder import Recorder

_STORY: Final = (
    "A healthy run, one version off-policy, whose batches get one version older every 5 steps from step 230 on (objective layer). "
    "Nothing corrects it: K3 explodes and the policy forgets what it has learned. `rescue` is the same run with logprobe armed."
)


def record(folder: Path, *, overwrite: bool) -> None:
    """Trains the twin without logprobe, and exports it to `folder`."""
    about = {
        "command": "python sample_data/rescue.py",
        "seed": SEED,
        "versions": {"python": sys.version.split()[0], "numpy": np.__version__},
        "measured": True,
        "story": _STORY,
        "layer": "objective",
        "onset_step": ONSET,
    }
    with tempfile.TemporaryDirectory() as home:
        with Recorder(home, TWIN) as recorder:
            train(recorder, None, range(1, STEPS))
            if not recorder.flush(FLUSH_SECONDS):
                raise LogprobeError(
                    f"something was lost on the way to {home}, so nothing is exported: {recorder.health}"
                )
        export_run(Path(home), TWIN, folder, about=about, overwrite=overwrite)


def main() -> int:
    """Command line; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--out", type=Path, default=Path(__file__).parents[1] / "app" / "demo", help="where its folder goes"
    )
    parser.add_argument("--overwrite", action="store_true", help="replace a twin exported before")
    arguments = parser.parse_args()
    try:
        record(arguments.out / TWIN, overwrite=arguments.overwrite)
    except LogprobeError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
