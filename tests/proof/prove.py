"""Plants each fault on a real engine and lets `logprobe bisect` find it, with and without `--only-score`; one row per fault, exit code 1 when one is missed.

    make campaign NAME=proof ARGS="bf16 in_flight"
    make campaign NAME=proof ARGS=article

Samples, finished arms and results are kept in `.artifacts/proof`; `--afresh` starts without them. Each call writes the rows of the table in
tests/RESULTS.md for which there is a result, with the day and the rules it was made by; the others stay. `article` is the story of
`v1-initial`, see article.py. Faults of settings alone are those of engine_faults.py and trainers.py.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import article
import page
from engine_process import ENGINE_ENVIRONMENT
from fault_table import ALL, IMPORTED, OF_IMPORT, OF_RUN, RUN, Document, kept, lines, right
from planted import RIGHT, Fault
from recorded_run import VERSION

HERE = Path(__file__).parent
ROOT = HERE.parents[1]

SEEDS = (11, 12)  # other models than the recorded runs'
STORY = "article"
_LOGPROBE = [sys.executable, "-m", "logprobe.app.cli"]
_PLUGINS = os.pathsep.join(str(path) for path in (HERE / "plugins", ROOT / "sample_data"))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("faults", nargs="*", metavar="FAULT", help=f"of {', '.join(ALL)}, {STORY} (default: all)")
    parser.add_argument("--afresh", action="store_true", help="forget samples and arms of earlier calls")
    parser.add_argument("--workers", type=int, default=2, help="faults at a time (2)")
    parser.add_argument("--folder", type=Path, default=ROOT / ".artifacts/proof")
    arguments = parser.parse_args()
    if arguments.afresh:
        shutil.rmtree(arguments.folder, ignore_errors=True)
    _models(arguments.folder)
    names = arguments.faults or [*ALL, STORY]
    with ThreadPoolExecutor(arguments.workers) as pool:
        results = dict(zip(names, pool.map(lambda name: _shown(name, arguments.folder), names), strict=True))
    page.write("faults", lines(kept(arguments.folder), page.rows("faults")))
    missed = [name for name, named in results.items() if not named]
    print(f"missed: {', '.join(missed)}" if missed else "every fault that was tried was named")
    return bool(missed)


def _shown(name: str, folder: Path) -> bool:
    if name == STORY:
        return article.tell(folder / STORY)
    began = time.monotonic()
    document = _HOW.get(name, partial(_of_sample, name))(folder)
    document["ran"] = page.ran()
    (folder / f"{name}.json").write_text(json.dumps(document, indent=1))
    named = right(ALL[name], document)
    print(_line(name, document["bisect"], named=named, seconds=time.monotonic() - began), flush=True)
    return named


def _line(name: str, found: Document, *, named: bool, seconds: float) -> str:
    first = found["arms"][0] if found["arms"] else {"knob": "–", "removed": None}
    removed = "–" if first["removed"] is None else f"{first['removed']:.1%}"
    return (
        f"{'ok  ' if named else 'MISS'}  {name:20} {'+'.join(found['departs_all']) or found['departs']:16} "
        f"{first['knob']:24} {removed:8} set: {', '.join(found['smallest_set']) or '–'}  "
        f"k3 {found['baseline']['k3']:.2g} floor {found['baseline']['noise_floor']:.2g}  {seconds:.0f} s"
    )


def _of_sample(name: str, folder: Path) -> Document:
    fault, sample = ALL[name], folder / f"{name}.jsonl"
    if not sample.exists():
        _run([sys.executable, str(HERE / "planted.py"), name, str(folder), str(sample)], fault)
    return {"score": _scored(fault, sample, folder), "bisect": _bisected(fault, sample, folder)}


def _of_run(folder: Path) -> Document:
    """A recorded run, by its name alone: scored, bisected, and the diagnosis calls the cause proven."""
    home = folder / "home"
    shutil.rmtree(home, ignore_errors=True)
    _run([sys.executable, str(HERE / "recorded_run.py"), str(folder / "new"), str(home), RUN])
    of_home = [f"--home={home}", "--json"]
    _run([*_LOGPROBE, "up", "--once", *of_home])
    which = [RUN, *of_home, f"--model={VERSION}={folder / 'new'}"]
    scored = json.loads(_run([*_LOGPROBE, "bisect", "--only-score", *which]))
    found = json.loads(_run([*_LOGPROBE, "bisect", *which, "--knobs", "logprobs_mode,dtype,kv_cache_dtype"]))
    first = json.loads(_run([*_LOGPROBE, "show", RUN, *of_home]))["findings"][0]
    proven = (first["cause"], first["confidence"], first["evidence"].get("proven_by"))
    diagnosed = proven == ("raw_logprobs", 1.0, "logprobs_mode = processed_logprobs")
    return {"score": scored, "bisect": found, "diagnosed": diagnosed}


def _of_import(folder: Path) -> Document:
    """Files as NeMo-RL writes them, which name neither temperature nor engine, imported and bisected by the run's name."""
    home, files, sample = folder / "imported-home", folder / "imported", folder / "bf16.jsonl"
    shutil.rmtree(home, ignore_errors=True)
    if not sample.exists():
        _run([sys.executable, str(HERE / "planted.py"), "bf16", str(folder), str(sample)], OF_IMPORT)
    files.mkdir(exist_ok=True)
    rows = [_nemo_row(json.loads(line)) for line in sample.read_text().splitlines()]
    (files / "train_data_step5.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    _run([*_LOGPROBE, "import", str(files), "--run", IMPORTED, f"--home={home}"])
    what = [IMPORTED, f"--home={home}", "--json", f"--model=5={folder / 'new'}"]
    what += ["--engine-args", _arguments(OF_IMPORT), "--sampling", json.dumps(OF_IMPORT.sampling)]
    scored = json.loads(_run([*_LOGPROBE, "bisect", "--only-score", *what]))
    return {"score": scored, "bisect": json.loads(_run([*_LOGPROBE, "bisect", *what, "--cache", str(folder / "arms")]))}


def _nemo_row(row: Document) -> Document:
    prompt, response = row["prompt_ids"], row["response_ids"]
    blank = [0.0] * len(prompt)
    return {
        "idx": int(row["sample_id"][1:]),
        "input_lengths": [len(prompt) + len(response)],
        "token_ids": [[*prompt, *response]],
        "token_loss_mask": [[*(0 for _ in prompt), *(1 for _ in response)]],
        "sample_loss_mask": [1.0],
        "generation_logprobs": [[*blank, *row["rollout_logprobs"]]],
        "prev_logprobs": [[*blank, *row["trainer_logprobs"]]],
    }


_HOW = {RUN: _of_run, IMPORTED: _of_import}


def _scored(fault: Fault, sample: Path, folder: Path) -> Document:
    return json.loads(_run([*_LOGPROBE, "bisect", "--only-score", *_what(fault, sample, folder)], fault))


def _what(fault: Fault, sample: Path, folder: Path) -> list[str]:
    models = [f"--model={version}={folder / version}" for version in ("new", "old")]
    return ["--sample", str(sample), "--json", "--engine-args", _arguments(fault), *models]


def _bisected(fault: Fault, sample: Path, folder: Path) -> Document:
    command = [*_LOGPROBE, "bisect", *_what(fault, sample, folder), "--cache", str(folder / "arms")]
    if "dropout" in fault.trainer:  # cannot be determined from t alone: the trainer's code is needed
        command += ["--trainer", "logprobe.monitor.proof.forward:score", "--trainer-args", json.dumps(fault.trainer)]
    return json.loads(_run(command, fault))


def _arguments(fault: Fault) -> str:
    """The engine's configuration as `vllm serve` takes it."""
    words = []
    for name, value in {**RIGHT, **fault.engine}.items():
        flag = f"--{name.replace('_', '-')}"
        if isinstance(value, bool):
            words.append(flag if value else flag.replace("--", "--no-", 1))
        else:
            words.append(f"{flag} '{json.dumps(value)}'" if isinstance(value, dict) else f"{flag} {value}")
    return " ".join(words)


def _run(command: list[str], fault: Fault = OF_RUN) -> str:
    environment = {**os.environ, **ENGINE_ENVIRONMENT, "PYTHONPATH": _PLUGINS if fault.round_kv else str(HERE)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    critical = done.returncode == 2 and "show" in command
    if done.returncode and not critical:
        raise SystemExit(f"{' '.join(command)} ended with {done.returncode}:\n{done.stderr[-4000:]}")
    return done.stdout


def _models(folder: Path) -> None:
    if (folder / "new" / "config.json").exists():
        return
    folder.mkdir(parents=True, exist_ok=True)
    code = (
        "import sys; from pathlib import Path; from tiny_model import make_tiny_model as make\n"
        f"old, new = (Path(sys.argv[1], name) for name in ('old', 'new')); make(old, seed={SEEDS[0]})\n"
        f"make(new, seed={SEEDS[1]}, like=old)"
    )
    subprocess.run([sys.executable, "-c", code, str(folder)], cwd=ROOT / "tests/e2e", check=True, capture_output=True)


if __name__ == "__main__":
    sys.exit(main())
