"""Tokens page: a step, its worst sequences, and every token of one sequence."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, cast

import numpy as np
import polars as pl
import streamlit as st
from numpy.typing import NDArray

from logprobe.app.dashboard import browser, data, ui
from logprobe.app.dashboard.figures import Chart, Curve, Mark, Row, rows_chart
from logprobe.app.dashboard.panels import NEEDED, PAIR_WORDS
from logprobe.app.dashboard.reading.token_text import (
    RULES,
    alignment,
    kept_words,
    sides_words,
    spans,
    states,
    visible,
)
from logprobe.app.dashboard.reading.tokenizers import vocabulary
from logprobe.app.dashboard.reading.tokens import StepList, StepTokens, read_step, read_steps
from logprobe.app.dashboard.steps import pairs_of
from logprobe.app.dashboard.theme import Theme
from logprobe.app.dashboard.thinning import wants_log
from logprobe.app.dashboard.ui import Line
from logprobe.app.runs import Run
from logprobe.app.text.numbers import number
from logprobe.collectors.correction import CorrectionConfig
from logprobe.collectors.correction.presets import preset
from logprobe.collectors.errors import LogprobeError
from logprobe.collectors.kernel.pairs import Pair
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

PAGE: Final = 2048  # tokens of a strip; further ones are on its next pages
WORST: Final = 50  # rows of the table
LONGEST: Final = 28  # characters of a token in the strip
_ALONE: Final = frozenset({"entropy", "advantage"})  # facts of a token that the table does without
_NAME: Final = 120  # characters of a name that are shown
_LIMITED: Final = frozenset({Rule.LIMITED_BELOW, Rule.LIMITED_ABOVE})
_SIDES: Final = (
    ("rollout", "rollout r"),
    ("trainer", "trainer t"),
    ("current", "current c"),
    ("reference", "reference"),
    ("teacher", "teacher"),
)


def draw(run: Run) -> None:
    """Draw the page."""
    chosen = st.container(horizontal=True, vertical_alignment="center", gap="small")
    with chosen:
        pair = cast("Pair", ui.choice("pair", pairs_of(data.frame_of(run)), "pair"))
        steps = data.kept(
            ("steps", run.name, pair), data.version_of(run), lambda: read_steps(data.reader(), run.name, pair)
        )
        number_of = _chosen_step(run, steps)
    st.caption(PAIR_WORDS[pair])
    if number_of is None:
        st.caption("This run has no steps yet.")
        return
    sample = _sample(run, number_of)
    step = data.kept(
        ("step", run.name, number_of, pair, sample),
        data.version_of(run),
        lambda: read_step(data.reader(), run.name, number_of, pair, sample),
    )
    chosen.caption(ui.unmarked(step_words(steps, step)))
    _bars(run, steps, number_of, pair)
    left, right = st.columns([2, 3], gap="medium")
    with left:
        step = _sequences(run, step)
    strip = _strip(run, step)
    if step.chosen is not None:
        with right:
            ui.title("Sequence", visible(step.chosen["sample_id"][:_NAME], spaces=False))
            ui.facts(facts_of(step.chosen, strip))
    for note in notes(step, strip):
        ui.write(note, "warning")
    if strip is not None:
        _tokens(run, step, strip)


# --- The step ---


def _chosen_step(run: Run, steps: StepList) -> int | None:
    """Offer a choice of step and return the chosen step.

    The default is the worst recent step, which remains selected while others arrive.
    """
    suggested = steps.suggested()
    if suggested is None:
        return None
    if st.session_state.get("run of the step") not in {None, run.name}:
        st.session_state["step"] = None  # means nothing in another run
    st.session_state["run of the step"] = run.name
    asked = st.query_params.get("step", "")
    if "step" not in st.session_state:
        st.session_state["step"] = int(asked) if asked.isdecimal() else suggested
    if st.session_state["step"] is None:
        st.session_state["step"] = suggested
    wanted = st.number_input(
        "step",
        key="step",
        bind="query-params",
        persist_state="session",
        step=1,
        width=150,
        label_visibility="collapsed",
    )
    return int(steps.step[np.abs(steps.step - int(suggested if wanted is None else wanted)).argmin()])


def step_words(steps: StepList, step: StepTokens) -> str:
    """Return the numbers of the chosen step in a line."""
    at = int(np.flatnonzero(steps.step == step.step)[0])
    broken = f"{steps.broken[at]:,.0f} broken tokens" if steps.broken[at] > 0 else ""
    parts = [f"step {step.step:,}", f"K3 {number(float(steps.k3[at]))}", broken, sides_words(step.sides)]
    return " · ".join(filter(None, parts))


def _bars(run: Run, steps: StepList, chosen: int, pair: str) -> None:
    """Draw K3 by step, as a chart for choosing a step."""
    version = (data.version_of(run), chosen, ui.theme().mode, ui.window(steps.step.tolist()))
    chart = ui.made(
        ("bars", run.name, pair, ui.theme().mode),
        version,
        lambda: bars(run.name, steps, chosen, pair, theme=ui.theme(), window=version[-1]),
    )
    browser.plot("step bars", chart, picked=lambda place: _open(int(steps.step[np.abs(steps.step - place).argmin()])))


def _open(step: int) -> None:
    st.session_state["step"] = step


def bars(run: str, steps: StepList, chosen: int, pair: str, *, theme: Theme, window: tuple[int, int] | None) -> Chart:
    """Return a chart of K3 by step with one step selected.

    Steps without raw tokens are pale. Steps with broken tokens have a cross.
    """
    place = steps.step.astype(np.float64)
    known = steps.k3[np.isfinite(steps.k3)]
    curves = [
        Curve("K3", place, steps.k3, theme.neutral, faint=True),
        Curve("K3", place, np.where(steps.kept > 0, steps.k3, np.nan), theme.neutral),
    ]
    broken = np.flatnonzero(steps.broken > 0)
    marks = [Mark("broken", float(place[at]), f"{steps.broken[at]:,.0f} broken tokens") for at in broken]
    return rows_chart(
        f"{run} {pair} {window}",
        [Row("K3", curves, unit="nats", log=wants_log(known), height=64)],
        theme,
        window=window,
        alt=f"K3 ({pair}) over {len(steps.step):,} steps; step {chosen:,} is chosen.",
        marks=[*marks, Mark("chosen", chosen, "chosen step")],
        note="Click to open a step; a cross: broken tokens; pale: raw tokens are not kept.",
        zooms=False,
    )


# --- Its sequences ---


def _sample(run: Run, step: int) -> str | None:
    """Return the sequence from the URL, which remains selected while late records change the order."""
    asked: str | None = st.query_params.get("sequence")
    if st.session_state.get("step of the sequence") not in {None, (run.name, step)}:
        asked = None
        st.query_params.pop("sequence", None)
    st.session_state["step of the sequence"] = (run.name, step)
    return asked


def _sequences(run: Run, step: StepTokens) -> StepTokens:
    """Draw the worst sequences of the step. Return the step with the selected sequence chosen."""
    if not step.sequences:
        return step
    table = pl.DataFrame([listed(sequence) for sequence in step.sequences], infer_schema_length=None)
    picked = st.dataframe(
        table,
        hide_index=True,
        placeholder="–",
        on_select="rerun",
        selection_mode="single-row",
        key=f"sequences {run.name} {step.step} {step.pair}",
        row_height=34,
        height=34 * min(12, len(table)) + 40,
        alt="worst sequences of the step",
        column_config={
            "share of K3": st.column_config.ProgressColumn("share of K3", format="percent", min_value=0, max_value=1),
            "sequence": st.column_config.TextColumn("sequence", width="small"),
        },
    )
    rows = picked.selection.rows
    if rows and rows[0] < len(step.sequences):
        sample = str(step.sequences[rows[0]]["sample_id"])
        st.query_params["sequence"] = sample
        return step.showing(sample) or step
    return step


def listed(sequence: Mapping[str, Any]) -> dict[str, Any]:
    """Return a sequence as a row of the list."""
    broken = sequence["broken"] or 0
    about = [
        *([f"replica {_name(sequence['replica'])}"] if sequence["replica"] else []),
        *([f"weights {spans(sequence, 2)}"] if sequence["spans"] else []),
        *([f"{sequence['cached_prefix_tokens']:,} cached"] if sequence["cached_prefix_tokens"] else []),
        *([] if sequence["raw_kept"] else ["no raw tokens"]),
        *([] if "broken" in sequence else ["not measured"]),
    ]
    return {
        "sequence": _name(sequence["sample_id"]),
        "share of K3": sequence["share"],
        "broken": f"✕ {broken:,}" if broken else None,
        "tokens": sequence["tokens"] + broken,
        "about": " · ".join(about),
    }


def _name(text: str) -> str:
    return visible(text[:_NAME], spaces=False)


def notes(step: StepTokens, strip: Strip | None) -> list[str]:
    """Return warnings that qualify the content below."""
    said = [kept_words(step.sides)]
    if step.asked is not None and step.sequences:
        said.append(f"Step {step.step:,} has no sequence called {_name(step.asked)}; showing the worst.")
    if not step.sequences:
        if not any(side.get("frozen_at") for side in step.sides):
            said.append("No sequences were recorded in this step.")
    elif all(sequence["broken"] is None for sequence in step.sequences):
        said.append(f"The pair {step.pair} was not measured in this step: record {NEEDED[step.pair]}.")
    if step.chosen is not None and strip is None:
        kept = step.chosen["raw_kept"]
        said.append(
            "The raw tokens of this sequence could not be read; retrying."
            if kept
            else "The raw tokens of this sequence are not kept. Its statistics are above."
        )
    if step.says_correction and step.correction is None:
        said.append("The trainer reported a correction for this step that cannot be recomputed here.")
    if strip is not None and strip.problem:
        said.append(f"Tokens are shown as ids: {strip.problem}.")
    return [note for note in said if note]


def facts_of(sequence: Mapping[str, Any], strip: Strip | None) -> list[tuple[str, str]]:
    """Return the facts about the sequence as a whole, as names and values."""
    pair = None if strip is None else strip.pair
    broken = sequence["broken"] or 0
    items = [
        ("tokens", f"{sequence['tokens'] + broken:,} trained on, of {sequence['n_total']:,}"),
        ("left out of every value", _left_out(broken, pair)),
        ("K3", number(sequence["k3_kl"])),
        ("share of the step's K3", "–" if sequence["share"] is None else f"{sequence['share']:.1%}"),
        ("mean d", number(sequence["log_ratio_mean"])),
        ("smallest, largest d", f"{number(sequence['log_ratio_min'])}, {number(sequence['log_ratio_max'])}"),
        ("ρ of the sequence", "" if pair is None else _of_measured(pair)),
        ("geometric mean of ρ", "" if pair is None else number(pair.geometric_ratio)),
        ("reward", "" if sequence["reward"] is None else number(sequence["reward"])),
        ("weights of the engine", spans(sequence) or "unknown"),
        ("weights of the trainer", _name(sequence["trainer_weight_version"] or "unknown")),
        ("replica", _name(sequence["replica"] or "")),
        ("cached prefix", f"{sequence['cached_prefix_tokens']:,} tokens" if sequence["cached_prefix_tokens"] else ""),
        ("finish reason", _name(sequence["finish_reason"] or "")),
        ("group", _name(sequence["group_id"] or "")),
        *((_name(name), _name(value or "")) for name, value in sequence["tags"] or ()),
        ("records", alignment(sequence)),
        *((each.name, str(each.config)) for each in (() if strip is None else strip.corrections)),
    ]
    return [(name, value) for name, value in items if value]


def _left_out(count: int, pair: PairTokens | None) -> str:
    """Describe the tokens under the mask that no value includes. Statistics do not distinguish broken from missing
    tokens.
    """
    if pair is None:
        return f"{count:,} broken or missing" if count else ""
    missing = int(np.count_nonzero(pair.state_N == MISSING))
    return ", ".join(
        filter(None, [f"{pair.broken:,} broken" if pair.broken else "", f"{missing:,} not recorded" if missing else ""])
    )


def _of_measured(pair: PairTokens) -> str:
    return f"{number(pair.sequence_ratio)} over {pair.measured:,} measured tokens" if pair.measured else "–"


# --- Its tokens ---


@dataclass(frozen=True)
class Corrected:
    """Effect of one correction on the sequence. `effect`: recomputed effect, or None if unknown. `note`: reason if
    unknown.
    """

    name: str
    config: CorrectionConfig
    effect: Effect | None
    note: str = ""


@dataclass(frozen=True)
class Strip:
    """The tokens of one sequence with their states, texts and corrections.

    `texts`: text by token id, empty without a tokenizer. `problem`: error of the configured tokenizer, or "".
    """

    tokens: Tokens
    pair: PairTokens
    corrections: Sequence[Corrected] = ()
    texts: Mapping[int, str] = field(default_factory=dict)
    problem: str = ""


def _strip(run: Run, step: StepTokens) -> Strip | None:
    sequence = step.chosen
    if sequence is None or not sequence["raw_kept"]:
        return None
    names = ("segment_id", "row", "rollout_source", "alignment", "trainer_weight_version")
    version = (*(sequence[name] for name in names), repr(step.correction))

    def made() -> Strip | None:
        tokens = read_tokens(data.reader(), run.name, step.step, segment=sequence["segment_id"], row=sequence["row"])
        if tokens is None:
            return None
        texts, problem = _texts(run.name, np.unique(tokens.token_id_N).tolist())
        return Strip(tokens, pair_tokens(tokens, step.pair), corrections(step.correction, tokens), texts, problem)

    return data.kept(("strip", run.name, step.step, step.pair, sequence["sample_id"]), version, made)


def _texts(run: str, ids: Collection[int]) -> tuple[dict[int, str], str]:
    """Return text by token id, and the reason if a named tokenizer gives no text."""
    try:
        tokenizer = vocabulary(data.home(), run)
    except LogprobeError as error:
        return {}, str(error).partition("\n")[0]
    return ({} if tokenizer is None else tokenizer.texts(ids)), ""


def corrections(stated: Stated | None, tokens: Tokens) -> list[Corrected]:
    """Return the correction that the trainer reported, if any, and masked importance sampling."""
    unknown = "unknown: it needs rollout and trainer log-probs, and the advantages it uses"
    made = []
    if stated is not None:
        done = effect(stated.config, tokens, stated.normalizer)
        batch = stated.config.normalize and stated.normalizer is None
        note = (
            "weights before normalisation: the batch mean is unknown from one sequence"
            if batch
            else ""
            if done
            else unknown
        )
        made.append(Corrected("the correction of this step", stated.config, done, note))
    done = effect(preset("mis"), tokens)
    return [*made, Corrected("MIS (preset mis)", preset("mis"), done, "" if done else unknown)]


def _tokens(run: Run, step: StepTokens, strip: Strip) -> None:
    sample = (step.chosen or {}).get("sample_id") or "sequence"
    chosen = _chosen_token(run, step, strip)
    pages = -(-len(strip.tokens) // PAGE)
    if pages > 1:
        now = (run.name, step.step, sample, chosen)
        if st.session_state.get("token before") != now:  # the strip follows the token, until another page is opened
            st.session_state["tokens from"], st.session_state["token before"] = chosen // PAGE + 1, now
        at = st.pagination(pages, key="tokens from") - 1
        chosen = chosen if chosen // PAGE == at else at * PAGE
    st.html(legend(strip, ui.theme()))
    words = describe_all(strip, step.pair)
    sent = browser.strip(
        f"strip {run.name} {step.step} {sample} {step.pair}",
        cells(strip, step, words, chosen, theme=ui.theme()),
    )
    chosen = chosen if sent is None or sent // PAGE != chosen // PAGE else sent
    st.query_params["token"] = str(chosen)
    ui.title(
        f"Token {chosen:,} of 0–{len(strip.tokens) - 1:,}", "arrow keys move, n goes to the next worst token, N back"
    )
    ui.facts(describe(strip, step, chosen))
    head, lines = worst_table(strip, step)
    if lines:
        ui.title("Worst tokens", "broken ones first" if lines[0].tone else "by the size of d")
        ui.table("worst tokens", head, lines)


def _chosen_token(run: Run, step: StepTokens, strip: Strip) -> int:
    """Return the place of the token from a click or the URL, or by default of the worst token."""
    key = f"strip {run.name} {step.step} {(step.chosen or {}).get('sample_id') or 'sequence'} {step.pair}"
    sent = (st.session_state.get(key) or {}).get("token")
    asked = st.query_params.get("token", "")
    first = st.session_state.get("strip that is open") in {None, key}
    st.session_state["strip that is open"] = key
    if sent is None and first and asked.isdecimal():
        sent = int(asked)
    usual = int(strip.pair.worst[0]) if len(strip.pair.worst) else 0
    return sent if sent is not None and 0 <= sent < len(strip.tokens) else usual


def _there(strip: Strip) -> list[tuple[str, str]]:
    return [
        (name, words)
        for name, words in _SIDES
        if name in strip.tokens.sides
        and (name not in {"reference", "teacher"} or strip.tokens.sides[name].known_N.any())
    ]


def cells(strip: Strip, step: StepTokens, words: Sequence[str], chosen: int, *, theme: Theme) -> dict[str, Any]:
    """Return the cells that `browser/strip.js` draws: the page of tokens with the chosen one."""
    tokens, pair = strip.tokens, strip.pair
    first = chosen // PAGE * PAGE
    turns, switches = set(turn_starts(tokens.mask_N).tolist()[1:]), set(version_switches(tokens.version_N).tolist())
    treated = strip.corrections[0].effect if strip.corrections else None
    shown = []
    for at in range(first, min(first + PAGE, len(tokens))):
        code = int(pair.state_N[at])
        state = (
            "broken" if code >= FIRST_BROKEN else "trained" if code == 0 else "masked" if code == MASKED else "missing"
        )
        rule = None if treated is None else int(treated.rule_N[at])
        marks = [
            "lp-turn" if at in turns else "",
            "lp-switch" if at in switches else "",
            "lp-dropped" if rule in DROPPED and state == "trained" else "lp-limited" if rule in _LIMITED else "",
        ]
        d = float(pair.d_N[at])
        broken = _broken(strip, step.pair, at) if state == "broken" else ""
        shown.append(
            [
                _label(strip, at),
                round(d, 4) if np.isfinite(d) else 0.0,
                state,
                " ".join(filter(None, marks)),
                words[at],
                broken,
            ]
        )
    names = ("page", "text")
    return {
        "cells": shown,
        "first": first,
        "chosen": chosen,
        "worst": pair.worst[:WORST].tolist(),
        "alt": alt_text(strip, step),
        "colors": {**{name: getattr(theme, name) for name in names}, "below": theme.backend, "above": theme.update},
    }


def _label(strip: Strip, at: int) -> str:
    """Return the text of a token, or its id, with # beside tokens that have a text."""
    token = int(strip.tokens.token_id_N[at])
    words = visible(strip.texts[token]) if token in strip.texts else f"{'#' if strip.texts else ''}{token}"
    return words if len(words) <= LONGEST else f"{words[: LONGEST - 1]}…"


def alt_text(strip: Strip, step: StepTokens) -> str:
    """Return a description of the strip in words."""
    pair = strip.pair
    worst = "" if not len(pair.worst) else f" The worst token is at position {int(pair.worst[0]):,}."
    broken = f" {pair.broken:,} are broken." if pair.broken else ""
    return (
        f"Tokens of one sequence of step {step.step:,}, coloured by ρ of the pair {step.pair}: {len(strip.tokens):,} tokens, "
        f"{pair.measured:,} measured.{broken} ρ of the sequence {number(pair.sequence_ratio)}, geometric mean "
        f"{number(pair.geometric_ratio)}.{worst} The table of worst tokens has the same information."
    )


def describe_all(strip: Strip, pair: str) -> list[str]:
    """Return a short description of each token, for its tooltip and for screen readers."""
    said = states(pair)
    ratio, d = strip.pair.ratio_N, strip.pair.d_N
    return [
        f"{at}: {said[code]['words']}"
        + (f", ρ {number(float(ratio[at]))}, d {number(float(d[at]))}" if code == 0 else "")
        for at, code in enumerate(strip.pair.state_N.tolist())
    ]


def describe(strip: Strip, step: StepTokens, at: int) -> list[tuple[str, str]]:
    """Return all known facts about a token."""
    tokens, pair = strip.tokens, strip.pair
    token = int(tokens.token_id_N[at])
    trainer = _name((step.chosen or {}).get("trainer_weight_version") or "unknown")
    return [
        ("position", f"{at:,}"),
        ("token", f"{visible(strip.texts[token])} (id {token})" if token in strip.texts else f"id {token}"),
        ("state", _state(strip, step.pair, at)),
        *((words, _logprob(strip, name, at)) for name, words in _there(strip)),
        ("d = log ρ", number(float(pair.d_N[at]))),
        ("ρ", number(float(pair.ratio_N[at]))),
        ("K3 term", number(float(pair.k3_N[at]))),
        ("entropy", _recorded(tokens.entropy_N, at)),
        ("advantage", _recorded(tokens.advantage_N, at)),
        ("weights", f"engine {_version(tokens, at)}, trainer {trainer}"),
        *((each.name, _treated(each, at)) for each in strip.corrections),
    ]


def _recorded(values: NDArray[np.float64], at: int) -> str:
    return number(float(values[at])) if np.isfinite(values).any() else "not recorded"


def _state(strip: Strip, pair: str, at: int) -> str:
    code = int(strip.pair.state_N[at])
    trained = np.flatnonzero(strip.tokens.mask_N)
    if code == MASKED and (not len(trained) or at < trained[0]):
        return "before the first token that is trained on: prompt or context"
    return str(states(pair)[code]["words"])


def _logprob(strip: Strip, name: str, at: int) -> str:
    side = strip.tokens.sides[name]
    return _digits(float(side.values_N[at])) if side.known_N[at] else "not recorded"


def _digits(value: float) -> str:
    """Return a number with five digits, which a comparison of log-probs needs."""
    if not np.isfinite(value):
        return "NaN" if np.isnan(value) else "+inf" if value > 0 else "−inf"
    return f"{value:.5g}".replace("-", "−", 1)


def _broken(strip: Strip, pair: str, at: int) -> str:
    """Return a short name of the fault of a broken token."""
    state = states(pair)[int(strip.pair.state_N[at])]
    return str(state["short"] or _logprob(strip, state["side"], at))


def _version(tokens: Tokens, at: int) -> str:
    code = int(tokens.version_N[at])
    return "unknown" if code < 0 else _name(tokens.versions[code])


def _treated(corrected: Corrected, at: int) -> str:
    """Return the effect of a correction on a token."""
    if corrected.effect is None:
        return corrected.note
    weight, rule = float(corrected.effect.weight_N[at]), int(corrected.effect.rule_N[at])
    if np.isnan(weight):
        return "–"
    words = RULES[Rule(rule)]
    if rule in DROPPED:
        return words
    return (
        f"weight {number(weight)}" + (f", {words}" if rule else "") + (f" ({corrected.note})" if corrected.note else "")
    )


def worst_table(strip: Strip, step: StepTokens) -> tuple[list[str], list[Line]]:
    """Return head and lines of the table of the worst tokens."""
    said = {at: dict(describe(strip, step, at)) for at in strip.pair.worst[:WORST].tolist()}
    head = [name for name in next(iter(said.values()), {}) if name not in _ALONE]
    broken = strip.pair.state_N >= FIRST_BROKEN
    return head, [Line([facts[name] for name in head], "critical" if broken[at] else "") for at, facts in said.items()]


def legend(strip: Strip, theme: Theme) -> str:
    """Return the meaning of the colours and marks that occur in the strip."""
    state, first = strip.pair.state_N, strip.corrections[0]
    rule = None if first.effect is None else first.effect.rule_N
    there = [
        (
            f"ρ &lt; 1: <span style='color:{theme.backend}'>■</span> less likely in the trainer, ρ &gt; 1: <span style='color:{theme.update}'>■</span> more likely; full from a factor of 4 on",
            True,
        ),
        ("hatched: not trained on", bool((state == MASKED).any())),
        ("dotted: one of the two log-probs was not recorded", bool((state == MISSING).any())),
        ("framed: broken, in no value", bool((state >= FIRST_BROKEN).any())),
        ("blue flag: new weights", bool(len(version_switches(strip.tokens.version_N)))),
        ("upright line: a turn starts", len(turn_starts(strip.tokens.mask_N)) > 1),
        (
            f"underlined: dropped by {first.name}; dashed: its weight is limited",
            rule is not None and bool((rule > 0).any()),
        ),
    ]
    return f"<div class='lp lp-hint'>{' · '.join(words for words, shown in there if shown)}</div>"
