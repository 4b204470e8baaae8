"""`logprobe bisect RUN --model VERSION=PATH` or `--sample FILE --model PATH`: find the settings that cause the
mismatch.

Each setting is tried on a real engine. ``--only-score`` scores the same tokens again to find the side that deviates.
The JSON form is public API, one document. Unknown values are null. Arms are sorted by the share that they remove:

    {"departs", "departs_all", "why",
     "baseline": {"k3", "noise_floor", "tokens_per_s", "kv_tokens", "legs": {"engine_state", "engine", "trainer",
         "policy_age"}},
     "arms": [{"knob", "setting", "side", "k3", "removed", "interval", "tokens_per_s",
               "verdict": "this is it|contributes|unproven|innocent|not testable here", "note", "cause",
               "speed": [ratio to the baseline, low, high], "kv_tokens", "leaves_open"}],
     "smallest_set": [knob …], "level": K3 up to which such setups are reported, "within_level": whether the engine's
         part is below it,
     "cheapest": "knob = setting", "parity", "residual": {side: what the settings leave},
     "layers": {side: [[name, relative error of its hidden states] …]}, "drifts_at": {side: [name …]},
     "not_measured": [...]}


With ``--only-score``:

    {"departs": "engine_state|engine|trainer|policy_age|none|unknown", "departs_all": [...], "why",
     "scores": {"r", "r_fresh", "q", "t", "t_fresh"},
     "pairs": [{"a", "b", "k3", "abs_diff_mean", "interval", "tokens", "broken", "p50", "p95", "p99", "largest",
                "outside", "off", "tail", "sequences_off": [place in the sample …], "unequal",
                "first_unequal": [place, token of the response]}],
     "sequences": [{"sample_id", "replica", K3 by gap}], those with a token that is off,
     "path": "decode|prefill", "exact": whether r and t are equal in every bit,
     "breaks": {"a", "b", "sequence", "operation", "token": place in prompt and response, "after", "equal"}, null
         without --exact,
     "noise_floor", "not_measured": [...], "engine": {…}, "tokens_per_s": {…}}
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from logprobe.app.proof_setup import Task, keep, task_of
from logprobe.app.surface.arguments import Arguments, home_path, refuse_usage
from logprobe.app.text import scores, tables
from logprobe.app.text.diagnosis import HEAD, arm_cells, to_change
from logprobe.collectors.plain_text import harmless
from logprobe.monitor.proof.experiments.arm_cache import ArmCache
from logprobe.monitor.proof.experiments.bisecting import Arm, Bisection, jumps
from logprobe.monitor.proof.experiments.countdown import Countdown
from logprobe.monitor.proof.experiments.experiment import bisect
from logprobe.monitor.proof.experiments.knobs import Knob, chosen
from logprobe.monitor.proof.scoring import score

FLOOR: Final = 3e-06  # K3 that counts as agreement


def run(arguments: Arguments) -> int:
    """Print the settings that cause the mismatch, or with ``--only-score`` the side that deviates."""
    _check_options(arguments)
    return _score(arguments) if arguments.only_score else _bisect(arguments)


def _check_options(arguments: Arguments) -> None:
    """End with a usage error if options exclude one another."""
    of_arms = ("knobs", "minutes", "cache")
    given = ", ".join(f"--{name}" for name in of_arms if getattr(arguments, name))
    if arguments.only_score and given:
        refuse_usage(f"--only-score: no setting is changed; leave out {given}")
    if arguments.exact and not arguments.only_score:
        refuse_usage("--exact: pass --only-score, too")
    if arguments.at is not None and arguments.name is None:
        refuse_usage("--at: pass a RUN; a sample file has no steps")


def _score(arguments: Arguments) -> int:
    task = task_of(arguments, arguments.at)
    scored = score(task.sequences, task.setup, floor=FLOOR, exact=arguments.exact)
    document = scored.document()
    keep(arguments, "score", document)
    tables.show(document, lambda: scores.text(scored, exact=arguments.exact), as_json=arguments.json)
    return int(arguments.exact and not scored.exact)


def _bisect(arguments: Arguments) -> int:
    knobs = chosen(None if arguments.knobs is None else arguments.knobs.split(","))
    task = task_of(arguments, arguments.at)
    try:
        found = _bisected(task, knobs, arguments)
    except KeyboardInterrupt:
        print("stopped; finished arms are kept, the same command continues", file=sys.stderr)
        raise
    document = found.document()
    keep(arguments, "bisect", document)
    tables.show(document, lambda: text(found), as_json=arguments.json)
    return 0


def _bisected(task: Task, knobs: Sequence[Knob], arguments: Arguments) -> Bisection:
    return bisect(
        task.sequences,
        task.setup,
        knobs=knobs,
        floor=FLOOR,
        minutes=arguments.minutes,
        run=ArmCache(cache_folder(arguments)),
        countdown=Countdown(_say),
    )


def _say(line: str) -> None:
    print(harmless(line), file=sys.stderr, flush=True)


def cache_folder(arguments: Arguments) -> Path:
    """Return the cache folder of finished arms."""
    return Path(arguments.cache).expanduser() if arguments.cache else Path(home_path(arguments)) / "proof"


def text(bisection: Bisection) -> str:
    """Return the verdict, the smallest set and the table of arms as text."""
    k3 = tables.cell(None if bisection.whole is None else bisection.whole.k3)
    lines = [
        (
            f"departs   {', '.join(bisection.decision.departs_all) or bisection.decision.departs}: "
            f"{bisection.decision.why}"
        ),
        f"baseline  K3 {k3} between r and t, noise floor {tables.cell(bisection.noise_floor)}",
    ]
    legs = [f"{side} {tables.cell(leg.k3)}" for side, leg in bisection.legs.items() if leg is not None]
    lines += [f"made of   {', '.join(legs)}"] if legs else []
    if bisection.arms:
        lines.append(f"change    {to_change(bisection.smallest_set, parity=bisection.parity)}")
    lines += _recommended(bisection) if bisection.smallest_set else []
    lines += [f"left      {side}: {residual}" for side, residual in bisection.residual.items()]
    for side, layers in bisection.layers.items():
        at = [f"{name} (relative error {dict(layers)[name]:.2g})" for name in jumps(layers)]
        words = f"drift at {', then at '.join(at)}" if at else "drift at no layer"
        lines.append(f"layers    hidden states of the {side} {words}")
    if bisection.arms:
        document = bisection.document()
        lines += ["", tables.fitted(HEAD, [arm_cells(arm.document(), document) for arm in bisection.arms])]
    lines += [f"not measured: {harmless(reason)}" for reason in bisection.not_measured]
    return "\n".join(lines) + "\n"


def _recommended(bisection: Bisection) -> list[str]:
    """Return the name of the cheapest sufficient engine setting, or state that no setting has to change."""
    limit, cheapest = bisection.enough, bisection.cheapest
    if bisection.within:
        return [
            f"cheapest  none: the engine's part is within what such a setup is reported to have (K3 up to {limit:g})"
        ]
    if cheapest is None:
        return []
    left = (
        ""
        if cheapest.verdict == "this is it"
        else f"; leaves K3 {tables.cell(cheapest.k3)}, such a setup has up to {limit:g}"
    )
    return [f"cheapest  {cheapest.knob} = {cheapest.setting}: {_price(cheapest)}{left}"]


def _price(arm: Arm) -> str:
    """Return the measured cost of a setting in speed."""
    ratio, low, high = arm.speed or (1.0, 1.0, 1.0)
    if low <= 1 <= high:
        return f"no measurable cost in tokens/s (×{low:.2f} … ×{high:.2f})"
    return f"×{ratio:.2f} tokens/s (×{low:.2f} … ×{high:.2f})"
