"""Writes files step by step as frameworks do: ``python framework_writers.py FORMAT FOLDER FIRST LAST SECONDS``.

These are not the frameworks' own code, which does not install beside the tests: each function opens, writes and closes its files in the
way, the order and the pieces of the exporter that it names (snapshots of August 2026).
"""

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path

from importing_files import nemo_row, open_instruct_row, prime_row, slime_rollout, slime_training

SEQUENCES = 6  # per step


def prime_rl(folder: Path, step: int, pause: float) -> None:
    """TokenExporter: the file is opened for each sequence, first to write and then to append; STABLE comes last."""
    place = folder / f"step_{step}"
    place.mkdir(parents=True, exist_ok=True)
    for index in range(SEQUENCES):
        with (place / "rank_0.jsonl").open("a" if index else "w", encoding="utf-8") as file:
            file.write(json.dumps(prime_row(step, index), separators=(",", ":")) + "\n")
        time.sleep(pause / SEQUENCES)
    (place / "STABLE").touch()


def nemo_rl(folder: Path, step: int, pause: float) -> None:
    """Logger.log_batched_dict_as_jsonl: one file per step, written in place through a buffer, so that lines end anywhere."""
    folder.mkdir(parents=True, exist_ok=True)
    text = "".join(json.dumps(nemo_row(index)) + "\n" for index in range(SEQUENCES))
    with (folder / f"train_data_step{step}.jsonl").open("w", encoding="utf-8") as file:
        for start in range(0, len(text), len(text) // 5):
            file.write(text[start : start + len(text) // 5])
            file.flush()
            time.sleep(pause / 5)


def open_instruct(folder: Path, step: int, pause: float) -> None:
    """_save_rollouts: one growing file for many steps, appended to from a thread."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "run_rollouts_000000.jsonl").open("a", encoding="utf-8") as file:
        for index in range(SEQUENCES):
            file.write(json.dumps(open_instruct_row(step, index)) + "\n")
            time.sleep(pause / SEQUENCES)


def slime(folder: Path, step: int, pause: float) -> None:
    """save_debug_rollout_data and save_debug_train_data (also miles): torch.save in place; here in parts, as a slow disk takes it."""
    import io

    import torch

    folder.mkdir(parents=True, exist_ok=True)
    for name, document in (
        (f"rollout_{step}.pt", slime_rollout(step, SEQUENCES)),
        (f"train_{step}_0.pt", slime_training(step, SEQUENCES, torch)),
    ):
        for samples in (document.get("samples", []),):
            for sample in samples:
                sample["index"] = sample["index"] + step * SEQUENCES
        if "rollout_data" in document:
            document["rollout_data"]["sample_indices"] = [step * SEQUENCES + i for i in range(SEQUENCES)]
        buffer = io.BytesIO()
        torch.save(document, buffer)
        data = buffer.getvalue()
        with (folder / name).open("wb", buffering=0) as file:
            for start in range(0, len(data), len(data) // 3):
                file.write(data[start : start + len(data) // 3])
                time.sleep(pause / 6)


WRITERS: dict[str, Callable[[Path, int, float], None]] = {
    "prime-rl": prime_rl,
    "nemo-rl": nemo_rl,
    "open-instruct": open_instruct,
    "slime": slime,
}


if __name__ == "__main__":
    form, place, first, last, seconds = sys.argv[1:]
    for number in range(int(first), int(last)):
        WRITERS[form](Path(place), number, float(seconds))
        print(number, flush=True)
