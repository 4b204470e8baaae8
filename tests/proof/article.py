"""The vLLM V0→V1 story from data: `v1-initial` recorded again with its weights kept, and bisected into the settings that made its gap.

    make campaign NAME=article

`v0-reference` is recorded and bisected beside it: it has to have nothing to find. Both tables, the whole one in tests/RESULTS.md and
the short one in README.md, are written from the two results, which are kept in `.artifacts/proof/article`. Exit code 1: a setting of the
story was not found, or another was.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import page
from engine_process import ENGINE_ENVIRONMENT

Document = dict[str, Any]
ROOT: Final = Path(__file__).resolve().parents[2]
REFERENCE, INITIAL = "v0-reference", "v1-initial"
STEPS: Final = 100
EXPECTED: Final = {"logprobs_mode", "enable_prefix_caching", "in_flight"}
_LOGPROBE: Final = [sys.executable, "-m", "logprobe.app.cli"]
_HOW: Final = {"score": ("bisect", "--only-score"), "bisect": ("bisect",)}
_PARTS: Final = {
    "engine": "a fresh engine with these settings, to the reference",
    "engine_state": "the engine as it ran, to a fresh one",
    "policy_age": "weights that sampled, to weights that train",
    "trainer": "the trainer, to the reference",
}
_AT_FAULT: Final = ("this is it", "contributes")
_SMALL: Final = 0.1
_SIDES: Final = {
    "engine": "engine's settings",
    "engine_state": "engine's state",
    "policy_age": "age",
    "trainer": "trainer",
}
_REMEDIES: Final = {
    "logprobs_mode": "`logprobs_mode=processed_logprobs`",
    "enable_prefix_caching": "clear the prefix cache at weight updates",
    "in_flight": "abort requests in flight at weight updates, or clear their KV cache",
}


def main(folder: Path) -> int:
    """Records, scores, bisects and writes the tables."""
    found = {run: _found(folder, run) for run in (REFERENCE, INITIAL)}
    told = right(found)
    if told:
        page.write("article", lines(found))
        page.write("article", short(found), ROOT / "README.md")
    print(f"{'ok  ' if told else 'MISS'}  {', '.join(found[INITIAL]['bisect']['smallest_set'])}")
    return int(not told)


def right(found: Mapping[str, Document]) -> bool:
    """Nothing is found in the reference run; in the other, scored and bisected, engine and state, and exactly the story's settings."""
    reference, initial = (found[run] for run in (REFERENCE, INITIAL))
    return (
        {reference[kind]["departs"] for kind in ("score", "bisect")} == {"none"}
        and all({"engine", "engine_state"} <= {*initial[kind]["departs_all"]} for kind in ("score", "bisect"))
        and all("trainer" not in initial[kind]["departs_all"] for kind in ("score", "bisect"))
        and {*initial["bisect"]["smallest_set"]} == EXPECTED
        and initial["bisect"]["parity"]
    )


def _found(folder: Path, run: str) -> Document:
    """What scoring and bisecting say of a run by its name alone: its checkpoints are recorded."""
    home = folder / "home"
    if not (folder / "recorded" / run).exists():
        _record(folder, run)
    _run([*_LOGPROBE, "up", "--once", f"--home={home}"])
    which = [run, f"--home={home}", "--json"]
    document = {kind: json.loads(_run([*_LOGPROBE, *words, *which])) for kind, words in _HOW.items()}
    (folder / f"{run}.json").write_text(json.dumps(document, indent=1))
    return document


def _record(folder: Path, run: str) -> None:
    where = [f"--home={folder / 'home'}", f"--out={folder / 'recorded'}", f"--policies={folder / 'policies'}"]
    kept = f"--checkpoints={folder / run}"
    _run([sys.executable, str(ROOT / "sample_data/record.py"), run, f"--steps={STEPS}", *where, kept])


def lines(found: Mapping[str, Document]) -> Iterator[str]:
    """Each part of the gap, with the arms that remove it."""
    document = found[INITIAL]["bisect"]
    yield "| part of the gap | K3 | arm | removes of the part [95 %] |"
    yield "|---|---|---|---|"
    for part, k3 in _parts(document):
        for arm in _arms(document, part) or [None]:
            yield f"| {_PARTS[part]} | {brief(k3)} | {_words(arm)} | {'–' if arm is None else share(arm)} |"
    yield ""
    yield _whole(found)


def short(found: Mapping[str, Document]) -> Iterator[str]:
    """What README shows: a line per setting, in the words of what to do."""
    document = found[INITIAL]["bisect"]
    yield "| what to change | part of the gap, K3 | removes of that part |"
    yield "|---|---|---|"
    for part, k3 in _parts(document):
        for arm in _arms(document, part):
            yield f"| {_REMEDIES[arm['knob']]} | {_SIDES[part]}, {brief(k3)} | {share(arm).split(' [')[0]} |"
    yield ""
    yield _whole(found)


def _whole(found: Mapping[str, Document]) -> str:
    before, after = (brief(found[run]["bisect"]["baseline"]["k3"]) for run in (INITIAL, REFERENCE))
    return f"K3 of `{INITIAL}` was {before}; in `{REFERENCE}` ({after}) there is nothing to find."


def _parts(document: Document) -> list[tuple[str, float]]:
    """Sides with their gaps, the largest first."""
    legs = [(part, k3) for part, k3 in document["baseline"]["legs"].items() if k3 is not None]
    return sorted(legs, key=lambda leg: -leg[1])


def _arms(document: Document, part: str) -> list[Document]:
    """The best arm of each setting of the smallest set on one side."""
    best: dict[str, Document] = {}
    for arm in document["arms"]:  # the best first
        if arm["side"] == part and arm["knob"] in document["smallest_set"] and arm["verdict"] in _AT_FAULT:
            best.setdefault(arm["knob"], arm)
    return list(best.values())


def _words(arm: Document | None) -> str:
    if arm is None:
        return "–"
    note = f" ({arm['note']})" if arm["note"] else ""
    return f"`{arm['knob']}`: {arm['setting']}{note}"


def brief(k3: float) -> str:
    """Two digits, as people write them: 0, 0.17, 1.5e-2."""
    return f"{k3:.1e}".replace("e-0", "e-") if 0 < k3 < _SMALL else f"{k3:.2g}"


def share(arm: Document) -> str:
    """What an arm removes, with its interval: `99.9 % [97, 100]`."""
    if arm["removed"] is None:
        return "–"
    bounds = f" [{', '.join(f'{100 * bound:.0f}' for bound in arm['interval'])}]" if arm["interval"] else ""
    return f"{arm['removed']:.1%}".replace("%", " %") + bounds


def _run(command: list[str]) -> str:
    environment = {**os.environ, **ENGINE_ENVIRONMENT, "LOGPROBE_RECORD": "prompts=1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} ended with {done.returncode}:\n{done.stderr[-4000:]}")
    return done.stdout


if __name__ == "__main__":
    sys.exit(main(ROOT / ".artifacts/proof/article"))
