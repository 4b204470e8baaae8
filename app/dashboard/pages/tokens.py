"""Tokens: a step, its worst sequences, and every token of one of them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any, Final, TypeVar, cast

import numpy as np
import streamlit as st
from numpy.typing import NDArray

from logprobe.app.dashboard.charts.packing import packed
from logprobe.app.dashboard.charts.panels import pairs_of
from logprobe.app.dashboard.data.feed import RunView
from logprobe.app.dashboard.data.tokenizers import vocabulary
from logprobe.app.dashboard.data.tokens import StepList, StepTokens, read_step, read_steps
from logprobe.app.dashboard.pages import token_text as words
from logprobe.app.dashboard.theme import Theme
from logprobe.app.dashboard.views.page import show
from logprobe.app.dashboard.views.session import asked, feed, guarded, home, is_new, put, theme
from logprobe.app.runs import Run
from logprobe.app.text.numbers import number
from logprobe.collectors.correction import CorrectionConfig
from logprobe.collectors.correction.presets import preset
from logprobe.collectors.errors import LogprobeError, ServiceUnavailableError
from logprobe.collectors.kernel.pairs import RATIO_PAIRS, Pair
from logprobe.monitor.analysis.token_view import (
    DROPPED,
    FIRST_BROKEN,
    MASKED,
    MISSING,
    Effect,
    PairTokens,
    Rule,
    Stated,
    Tokens,
    effect,
    pair_tokens,
    read_tokens,
    turn_starts,
    version_switches,
)

_NAME: Final = 120  # characters of a name that are shown


@dataclass(frozen=True)
class Corrected:
    """What one correction does to the sequence; `effect` is None where it is unknown, and `note` says why."""

    name: str
    config: CorrectionConfig
    effect: Effect | None
    note: str = ""


@dataclass(frozen=True)
class Strip:
    """The tokens of one sequence with everything that is said of them; `texts`: by token id, empty without a
    tokenizer."""

    tokens: Tokens
    pair: PairTokens
    corrections: Sequence[Corrected] = ()
    texts: Mapping[int, str] = field(default_factory=dict)
    problem: str = ""  # why there is no text, where there should be


def page_of(
    run: str, steps: StepList, step: StepTokens, strip: Strip | None, theme: Theme, *, pairs: Sequence[str] = RATIO_PAIRS
) -> dict[str, Any]:  # fmt: skip
    """Data of the whole page but the strip itself, see `strip_of`. `pairs`: those to choose from."""
    return {
        "run": run,
        "step": step.step,
        "pair": step.pair,
        "pairs": [{"name": name, "help": words.PAIRS[name]} for name in pairs],
        "colors": colors_of(theme),
        "chooser": chooser_of(steps, step),
        "note": words.sides_words(step.sides),
        "notes": _notes(step, strip),
        "sequences": [_listed(sequence, chosen=sequence is step.chosen) for sequence in step.sequences],
        "facts": [] if step.chosen is None else facts_of(step.chosen, strip),
    }


def colors_of(theme: Theme) -> dict[str, str]:
    """Colours of what is painted on a canvas, where no style sheet reaches; ρ below 1 is blue, above 1 orange."""
    names = ("text", "muted", "line", "page", "surface", "accent", "alarm")
    return {name: getattr(theme, name) for name in names} | {"below": theme.backend, "above": theme.update}


def chooser_of(steps: StepList, step: StepTokens) -> dict[str, Any]:
    """K3 by step, to choose one from; `marks`: 1 where raw tokens are kept, 2 where tokens are broken, 3 both."""
    marks = (steps.kept > 0).astype(np.int8) + 2 * (steps.broken > 0).astype(np.int8)
    return {
        "step": packed(steps.step.astype(np.float64)),
        "k3": packed(steps.k3),
        "broken": packed(steps.broken),
        "marks": packed(marks, "i1"),
        "alt": f"K3 ({step.pair}) over {len(steps.step):,} steps; step {step.step:,} is chosen",
    }


def _notes(step: StepTokens, strip: Strip | None) -> list[str]:
    """What has to be known before anything below is believed."""
    notes = [words.kept_words(step.sides)]
    if step.asked is not None and step.sequences:
        notes.append(
            f"Step {step.step:,} has no sequence called {words.visible(step.asked[:_NAME], spaces=False)}; showing the "
            "worst."
        )
    if not step.sequences:
        notes.append(
            f"No sequences of this step have statistics for the pair {step.pair}."
            if any(side.get("folded") for side in step.sides)
            else "No sequences were recorded in this step."
        )
    elif all(sequence.get("share") is None and sequence.get("broken") is None for sequence in step.sequences):
        notes.append(f"The pair {step.pair} was not measured in this step; {_needed(step.pair)}.")
    if step.chosen is not None and strip is None:
        notes.append(_gone(step.chosen))
    if step.says_correction and step.correction is None:
        notes.append("The trainer reported a correction for this step that cannot be recomputed here.")
    if strip is not None and strip.problem:
        notes.append(f"Tokens are shown as ids: {strip.problem}.")
    return [note for note in notes if note]


def _needed(pair: str) -> str:
    return {
        "backend": "record rollout and trainer log-probs of the same tokens",
        "update": "record `current_logprobs`",
        "total": "record `current_logprobs` and rollout log-probs",
        "reference": "record `reference_logprobs`",
    }[pair]


def _gone(sequence: Mapping[str, Any]) -> str:
    if sequence["raw_kept"]:
        return "The raw tokens of this sequence could not be read; retrying."
    return "The raw tokens of this sequence are not kept. Its statistics are below."


def _listed(sequence: Mapping[str, Any], *, chosen: bool) -> dict[str, Any]:
    """A line of the list of sequences."""
    broken = sequence.get("broken") or 0
    measured = "broken" in sequence
    share = sequence.get("share")
    return {
        "sample": sequence["sample_id"],
        "name": _name(sequence["sample_id"]),
        "share": "not measured" if not measured else "–" if share is None else f"{share:.1%}",
        "bar": 0.0 if share is None else round(share, 4),
        "words": [
            *([f"{broken:,} broken or missing"] if broken else []),
            f"{sequence['tokens'] + broken:,} tokens",
            *([f"replica {_name(sequence['replica'])}"] if sequence["replica"] else []),
            *([f"weights {words.spans(sequence, 2)}"] if sequence["spans"] else []),
            *([f"{sequence['cached_prefix_tokens']:,} cached"] if sequence["cached_prefix_tokens"] else []),
            *([] if sequence["raw_kept"] else ["no raw tokens"]),
        ],
        "broken": bool(broken),
        "chosen": chosen,
    }


def _name(text: str) -> str:
    return words.visible(text[:_NAME], spaces=False)


def facts_of(sequence: Mapping[str, Any], strip: Strip | None) -> list[list[str]]:
    """What is known of the sequence as a whole; names and values as text."""
    pair = None if strip is None else strip.pair
    broken = sequence.get("broken") or 0
    facts = [
        ("tokens", f"{sequence['tokens'] + broken:,} trained on, of {sequence['n_total']:,}"),
        ("left out of every value", _left_out(broken, pair)),
        ("K3", number(sequence.get("k3_kl"))),
        ("share of the step's K3", "–" if sequence.get("share") is None else f"{sequence['share']:.1%}"),
        ("mean d", number(sequence.get("log_ratio_mean"))),
        ("smallest, largest d", f"{number(sequence.get('log_ratio_min'))}, {number(sequence.get('log_ratio_max'))}"),
        ("ρ of the sequence", _of_measured(pair) if pair else ""),
        ("geometric mean of ρ", number(pair.geometric_ratio) if pair else ""),
        ("reward", "" if sequence["reward"] is None else number(sequence["reward"])),
        ("weights of the engine", words.spans(sequence) or "unknown"),
        ("weights of the trainer", _name(sequence["trainer_weight_version"] or "unknown")),
        ("replica", _name(sequence["replica"] or "")),
        ("cached prefix", f"{sequence['cached_prefix_tokens']:,} tokens" if sequence["cached_prefix_tokens"] else ""),
        ("finish reason", _name(sequence["finish_reason"] or "")),
        ("group", _name(sequence["group_id"] or "")),
        *((_name(name), _name(value or "")) for name, value in sequence["tags"] or ()),
        ("records", words.alignment(sequence)),
    ]
    return [[name, value] for name, value in facts if value]


def _left_out(number_of: int, pair: PairTokens | None) -> str:
    """Tokens under the mask that are in no value; statistics do not tell those that are broken from those that are
    missing."""
    if pair is None:
        return f"{number_of:,} broken or missing" if number_of else ""
    missing = int(np.count_nonzero(pair.state_N == MISSING))
    parts = [f"{pair.broken:,} broken" if pair.broken else "", f"{missing:,} not recorded" if missing else ""]
    return ", ".join(filter(None, parts))


def _of_measured(pair: PairTokens) -> str:
    return f"{number(pair.sequence_ratio)} over {pair.measured:,} measured tokens" if pair.measured else "–"


def strip_of(strip: Strip, step: StepTokens) -> dict[str, Any]:
    """The strip: packed columns [N] and the words for their codes. A column without any value is left out."""
    tokens, pair = strip.tokens, strip.pair
    trained = np.flatnonzero(tokens.mask_N)
    return {
        "n": len(tokens),
        "sample": _name((step.chosen or {}).get("sample_id") or ""),
        "measured": pair.measured,
        "first": int(trained[0]) if len(trained) else len(tokens),
        "columns": _columns(strip),
        "texts": {str(token): words.visible(text) for token, text in strip.texts.items()},
        "versions": [_name(version) for version in tokens.versions],
        "trainer_version": _name((step.chosen or {}).get("trainer_weight_version") or "unknown"),
        "switches": version_switches(tokens.version_N).tolist(),
        "turns": turn_starts(tokens.mask_N).tolist()[1:],
        "worst": pair.worst.tolist(),
        "states": words.states(step.pair),
        "first_broken": FIRST_BROKEN,
        "masked": MASKED,
        "corrections": [_correction(correction) for correction in strip.corrections],
        "alt": alt_text(strip, step),
    }


def _columns(strip: Strip) -> dict[str, dict[str, str]]:
    tokens, pair = strip.tokens, strip.pair
    floats = {
        **{name: side.values_N for name, side in tokens.sides.items() if side.known_N.any()},
        "d": pair.d_N,
        "ratio": pair.ratio_N,
        "k3": pair.k3_N,
        "cumulative": pair.cumulative_N,
        "entropy": tokens.entropy_N,
        "advantage": tokens.advantage_N,
    }
    effects = [correction.effect for correction in strip.corrections]
    floats |= {f"weight{at}": effect.weight_N for at, effect in enumerate(effects) if effect}
    codes = {"state": pair.state_N} | {f"rule{at}": effect.rule_N for at, effect in enumerate(effects) if effect}
    masks = {name: side.known_N for name, side in tokens.sides.items() if not side.known_N.all()}
    return {
        "id": packed(tokens.token_id_N, "i4"),
        "version": packed(tokens.version_N, "i4"),
        **{name: _float(values) for name, values in floats.items() if not _empty(name, values)},
        **{name: packed(values, "i1") for name, values in codes.items()},
        **{f"{name}_known": packed(flags, "i1") for name, flags in masks.items()},
    }


def _float(values: NDArray[np.float64]) -> dict[str, str]:
    with np.errstate(over="ignore"):  # what exceeds float32 is shown as infinite, and is broken anyway
        return packed(values.astype(np.float32), "f4")


def _empty(name: str, values: NDArray[np.float64]) -> bool:
    return name in {"entropy", "advantage"} and not np.isfinite(values).any()


def _correction(corrected: Corrected) -> dict[str, Any]:
    return {
        "name": corrected.name,
        "config": str(corrected.config),
        "note": corrected.note,
        "rules": words.rules(corrected.config),
        "dropped": [int(rule) for rule in DROPPED],
        "limited": [int(Rule.LIMITED_BELOW), int(Rule.LIMITED_ABOVE)],
    }


def alt_text(strip: Strip, step: StepTokens) -> str:
    """The strip in words."""
    pair = strip.pair
    worst = "" if not len(pair.worst) else f" The worst token is at position {int(pair.worst[0]):,}."
    broken = f" {pair.broken:,} are broken." if pair.broken else ""
    return (
        f"Tokens of one sequence of step {step.step:,}, coloured by ρ of the pair {step.pair}: {len(strip.tokens):,} "
        "tokens, "
        f"{pair.measured:,} measured.{broken} ρ of the sequence {number(pair.sequence_ratio)}, "
        f"geometric mean {number(pair.geometric_ratio)}.{worst} The table of worst tokens has the same information."
    )


T = TypeVar("T")

_UNREAD: Final = "This step has not been read yet; retrying."
_RUN: Final = "tokens run"
_SENT: Final = "tokens sent"
_ANSWERED: Final = "tokens answered"


def draw(run: Run, view: RunView) -> None:
    """Draws the page."""
    with guarded("tokens"):
        _leave_other_runs(run)
        pairs = pairs_of(view.series)
        pair = cast("Pair", asked("pair") if asked("pair") in pairs else "backend")
        about = (run.name, pair)
        steps = _remembered("steps", about, lambda: read_steps(feed(), run.name, pair), version=view.version)
        number = None if steps is None else _step(steps)
        step = None if number is None else _read((*about, number), view.version, asked("sequence"))
        if steps is None or step is None:
            st.caption(_UNREAD)
        else:
            _shown(run, steps, step, pairs)


def _leave_other_runs(run: Run) -> None:
    """What the address names of the run that was looked at before means nothing in this one."""
    before, st.session_state[_RUN] = st.session_state.get(_RUN, run.name), run.name
    if before != run.name:
        put({"step": None, "sequence": None, "token": None})


def _read(about: tuple[str, Pair, int], version: str, sample: str | None) -> StepTokens | None:
    """The step, with the sequence that the address names: read for it only where it is not among the worst."""
    run, pair, number = about
    step = _remembered("step", about, lambda: read_step(feed(), run, number, pair), version=version)
    if step is None or sample is None:
        return step
    return step.showing(sample) or _remembered(
        "named", (about, sample), lambda: read_step(feed(), run, number, pair, sample), version=version
    )


def _step(steps: StepList) -> int | None:
    """The step the address names, or the one that is suggested: then the address names that, and it stays while others
    come."""
    text = asked("step") or ""
    if text.isdecimal() and int(text) in steps.step:
        return int(text)
    suggested = steps.suggested()
    if not text and suggested is not None:
        put({"step": suggested})
    return suggested


def _shown(run: Run, steps: StepList, step: StepTokens, pairs: Sequence[str]) -> None:
    if asked("sequence") is None and step.chosen is not None:
        put({"sequence": step.chosen["sample_id"]})  # it stays while records that arrive late change the order
    strip = _strip(run, step)
    colors = theme()
    page = page_of(run.name, steps, step, strip, colors, pairs=pairs)
    if asked("step") not in {None, "", str(step.step)}:
        page["notes"].insert(0, f"Step {asked('step')} is not among the steps of this run; showing step {step.step:,}.")
    drawn = None if strip is None else _remembered("drawn", _key(run, step), lambda: strip_of(strip, step))
    version = "" if drawn is None else _digest(_key(run, step), drawn["n"])
    page["strip"] = None if drawn is None else _once(drawn, version)
    wanted = show("tokens", "tokens", {"version": _digest(repr(page | {"strip": version}), colors.mode), **page})
    if is_new(wanted, _ANSWERED):
        st.session_state.pop(_SENT, None)
        st.rerun(scope="fragment")


def _once(drawn: dict[str, Any], version: str) -> dict[str, Any]:
    """Columns travel once a session: they are megabytes, and the browser keeps them. It asks again when it has lost
    them."""
    sent, st.session_state[_SENT] = st.session_state.get(_SENT), version
    light = {name: value for name, value in drawn.items() if name not in {"columns", "texts"}}
    return (light if sent == version else drawn) | {"version": version}


def _strip(run: Run, step: StepTokens) -> Strip | None:
    sequence = step.chosen
    if sequence is None or not sequence["raw_kept"]:
        return None
    key = {"segment": sequence["segment_id"], "row": sequence["row"]}
    records = (run.name, *key.values(), sequence["rollout_source"], sequence["alignment"])
    tokens = _remembered("tokens", records, lambda: read_tokens(feed(), run.name, step.step, **key))
    return None if tokens is None else _remembered("strip", _key(run, step), lambda: _made(run, step, tokens))


def _made(run: Run, step: StepTokens, tokens: Tokens) -> Strip:
    texts, problem = _texts(run.name, np.unique(tokens.token_id_N).tolist())
    return Strip(tokens, pair_tokens(tokens, step.pair), _corrections(step, tokens), texts, problem)


def _key(run: Run, step: StepTokens) -> tuple[Hashable, ...]:
    """Another one whenever the strip is."""
    chosen = step.chosen or {}
    names = ("segment_id", "row", "rollout_source", "alignment", "raw_kept", "trainer_weight_version")
    return (run.name, step.step, step.pair, *(chosen.get(name) for name in names), repr(step.correction))


def _texts(run: str, ids: Collection[int]) -> tuple[dict[int, str], str]:
    """Text by token id, and why there is none although a tokenizer was named."""
    try:
        tokenizer = vocabulary(home(), run)
        return ({} if tokenizer is None else tokenizer.texts(ids)), ""
    except LogprobeError as error:
        return {}, str(error).partition("\n")[0]


def _corrections(step: StepTokens, tokens: Tokens) -> list[Corrected]:
    """The correction that the trainer says it applied, if there is one, and masked importance sampling as its preset
    has it."""
    applied = [] if step.correction is None else [_applied(step.correction, tokens)]
    config = preset("mis")
    done = effect(config, tokens)
    return [*applied, Corrected("MIS (preset mis: 0.5 to 2)", config, done, _unknown(done))]


def _applied(stated: Stated, tokens: Tokens) -> Corrected:
    done = effect(stated.config, tokens, stated.normalizer)
    whole_batch = stated.config.normalize and stated.normalizer is None
    note = (
        "weights before normalisation: the batch mean is unknown from one sequence" if whole_batch else _unknown(done)
    )
    return Corrected("applied in this step", stated.config, done, note)


def _unknown(done: object) -> str:
    return "" if done is not None else "unknown: it needs rollout and trainer log-probs, and the advantages it uses"


def _remembered(name: str, about: Hashable, read: Callable[[], T | None], *, version: str = "") -> T | None:
    """What `read` gave for `about` at `version`, read again when it is another one.

    While the service does not answer, what was read last about the same; never what was read about something else.
    """
    place = f"tokens {name}"
    remembered: tuple[Hashable, str, T] | None = st.session_state.get(place)
    if remembered is not None and remembered[:2] == (about, version):
        return remembered[2]
    with suppress(ServiceUnavailableError):  # the bar says so
        value = read()
        if value is not None:
            st.session_state[place] = (about, version, value)
        return value
    return remembered[2] if remembered is not None and remembered[0] == about else None


def _digest(*parts: object) -> str:
    return sha256(repr(parts).encode()).hexdigest()[:16]
