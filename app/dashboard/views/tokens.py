"""Tokens: a step, its worst sequences, and every token of one of them."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from contextlib import suppress
from hashlib import sha256
from typing import Any, Final, TypeVar, cast

import numpy as np
import streamlit as st

from logprobe.app.dashboard.charts.panels import pairs_of
from logprobe.app.dashboard.data.feed import RunView
from logprobe.app.dashboard.data.tokenizers import vocabulary
from logprobe.app.dashboard.data.tokens import StepList, StepTokens, read_step, read_steps
from logprobe.app.dashboard.pages.tokens import Corrected, Strip, page_of, strip_of
from logprobe.app.dashboard.views.page import show
from logprobe.app.dashboard.views.session import asked, feed, guarded, home, is_new, put, theme
from logprobe.app.runs import Run
from logprobe.collectors.correction.presets import preset
from logprobe.collectors.errors import LogprobeError, ServiceUnavailableError
from logprobe.collectors.kernel.pairs import Pair
from logprobe.monitor.analysis.token_correction import Stated, effect
from logprobe.monitor.analysis.token_view import Tokens, pair_tokens, read_tokens

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
    """The step the address names, or the one that is suggested: then the address names that, and it stays while others come."""
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
    """Columns travel once a session: they are megabytes, and the browser keeps them. It asks again when it has lost them."""
    sent, st.session_state[_SENT] = st.session_state.get(_SENT), version
    light = {name: value for name, value in drawn.items() if name not in {"columns", "texts"}}
    return (light if sent == version else drawn) | {"version": version}


def _strip(run: Run, step: StepTokens) -> Strip | None:
    sequence = step.chosen
    if sequence is None or not sequence["raw_kept"]:
        return None
    key = {"segment": sequence["segment_id"], "row": sequence["row"]}
    records = (run.name, *key.values(), sequence["rollout_source"], sequence["alignment"])
    found = _remembered("tokens", records, lambda: read_tokens(feed(), run.name, step.step, **key))
    return None if found is None else _remembered("strip", _key(run, step), lambda: _made(run, step, found))


def _made(run: Run, step: StepTokens, found: Tokens) -> Strip:
    texts, problem = _texts(run.name, np.unique(found.token_id_N).tolist())
    return Strip(found, pair_tokens(found, step.pair), _corrections(step, found), texts, problem)


def _key(run: Run, step: StepTokens) -> tuple[Hashable, ...]:
    """Another one whenever the strip is."""
    chosen = step.chosen or {}
    names = ("segment_id", "row", "rollout_source", "alignment", "raw_kept", "trainer_weight_version")
    return (run.name, step.step, step.pair, *(chosen.get(name) for name in names), repr(step.correction))


def _texts(run: str, ids: Iterable[int]) -> tuple[dict[int, str], str]:
    """Text by token id, and why there is none although a tokenizer was named."""
    try:
        found = vocabulary(home(), run)
        return ({} if found is None else found.texts(ids)), ""
    except LogprobeError as error:
        return {}, str(error).partition("\n")[0]


def _corrections(step: StepTokens, found: Tokens) -> list[Corrected]:
    """The correction that the trainer says it applied, if there is one, and masked importance sampling as its preset has it."""
    applied = [] if step.correction is None else [_applied(step.correction, found)]
    config = preset("mis")
    done = effect(config, found)
    return [*applied, Corrected("MIS (preset mis: 0.5 to 2)", config, done, _unknown(done))]


def _applied(known: Stated, found: Tokens) -> Corrected:
    done = effect(known.config, found, known.normalizer)
    whole_batch = known.config.normalize and known.normalizer is None
    note = (
        "weights before normalisation: the batch mean is unknown from one sequence" if whole_batch else _unknown(done)
    )
    return Corrected("applied in this step", known.config, done, note)


def _unknown(done: object) -> str:
    return "" if done is not None else "unknown: it needs rollout and trainer log-probs, and the advantages it uses"


def _remembered(name: str, about: Hashable, read: Callable[[], T | None], *, version: str = "") -> T | None:
    """What `read` gave for `about` at `version`, read again when it is another one.

    While the service does not answer, what was read last about the same; never what was read about something else.
    """
    place = f"tokens {name}"
    known: tuple[Hashable, str, T] | None = st.session_state.get(place)
    if known is not None and known[:2] == (about, version):
        return known[2]
    with suppress(ServiceUnavailableError):  # the bar says so
        value = read()
        if value is not None:
            st.session_state[place] = (about, version, value)
        return value
    return known[2] if known is not None and known[0] == about else None


def _digest(*parts: object) -> str:
    return sha256(repr(parts).encode()).hexdigest()[:16]
