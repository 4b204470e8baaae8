"""What the page says when there is nothing to show, and what to do about it."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import streamlit as st

ABSENT_RUN: Final = "This run has not been read yet; retrying."
BEGINNING: Final = (
    "Recording has started, but no step is complete yet. Values appear once the trainer has recorded a step."
)


def recording_snippet(home: Path) -> None:
    """No runs: how to start recording."""
    st.markdown("#### No runs yet")
    st.markdown(
        f"The service is watching `{home}`. Record from your training loop, and the run appears here within seconds:"
    )
    st.code(_SNIPPET.format(home=str(home)), language="python")
    st.markdown(
        "Nothing to record yet? `logprobe demo` replays a recorded run. `logprobe doctor` shows what can be measured "
        "here."
    )


def no_service(home: Path) -> None:
    """The service has not answered since this page was opened."""
    st.markdown("#### The monitor service is not responding")
    st.markdown("It owns this home's data; this page keeps retrying. If it is not running, start it with")
    st.code(f"logprobe up --home {home}", language="bash")


_SNIPPET: Final = """from logprobe.collectors import Recorder

with Recorder("{home}", "my-run") as recorder:
    for step, batch in enumerate(batches):
        …
        recorder.training(
            step=step,
            sample_ids=batch.sample_ids,
            token_ids=batch.token_ids,                # [batch, time]
            rollout_logprobs=batch.rollout_logprobs,  # as the engine reported them
            trainer_logprobs=batch.trainer_logprobs,  # recomputed before the update
            mask=batch.mask,
        )"""
