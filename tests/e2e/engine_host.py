"""A process that imports vLLM once and plays one scenario after the other, each with an engine and a home of its own.

    python engine_host.py

It reads one JSON object a line: script, name, arguments, environment. It answers each with a line: {"result": …} or {"error": …}. The first
engine of the process, before anything else, runs without a home: what its callers got is what others are compared with.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import traceback
from importlib import import_module
from pathlib import Path
from typing import Any


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what vLLM prints goes where its log goes
    for line in sys.stdin:
        answers.write(json.dumps(played(json.loads(line))) + "\n")
        answers.flush()


def played(asked: dict[str, Any]) -> dict[str, Any]:
    """What a scenario returned, with its engines gone and the environment as it was."""
    import engine_scenarios

    before = dict(os.environ)
    folder, *numbers = asked["arguments"]
    models = Path(folder)
    try:
        if engine_scenarios.ABSENT is None:
            engine_scenarios.ABSENT = engine_scenarios.without_a_home(models)
        os.environ.update(asked["environment"])
        return {"result": getattr(import_module(asked["script"]), asked["name"])(models, *numbers)}
    except BaseException:  # the process lives on for the next one
        return {"error": traceback.format_exc()}
    finally:
        engine_scenarios.shut_down()
        gc.collect()
        os.environ.clear()
        os.environ.update(before)


if __name__ == "__main__":
    main()
