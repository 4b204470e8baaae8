"""The environment variables of logprobe, in one table. docs/settings.md says what each is for."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from difflib import get_close_matches
from typing import Final

from logprobe.collectors.health import LOGGER

VARIABLES: Final = (
    "LOGPROBE_HOME", "LOGPROBE_RUN", "LOGPROBE_REPLICA", "LOGPROBE_SAMPLE_PREFIX", "LOGPROBE_RAW_FRACTION",
    "LOGPROBE_VLLM", "LOGPROBE_CORRECTION", "LOGPROBE_TOKEN", "LOGPROBE_DIRECTIVE_KEY",
    "LOGPROBE_UMASK", "LOGPROBE_LIMITS", "LOGPROBE_RECORD",
)  # fmt: skip
PASSED: Final = ("LOGPROBE_DASHBOARD", "LOGPROBE_PROOF_READINGS")  # between processes of logprobe
_PREFIX: Final = "LOGPROBE_"
# Kubernetes sets these in every pod beside a service called logprobe, or logprobe-something.
_OF_KUBERNETES: Final = re.compile(r"_(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT(_\d+_\w+)?)$")


def wanted(environment: Mapping[str, str] = os.environ) -> bool:
    """Return whether a home is named, so that a plugin records. Where none is, the log says which variable may have
    been meant to."""
    if environment.get("LOGPROBE_HOME"):
        return True
    if words := unknown(environment):
        LOGGER.warning("nothing is recorded, as LOGPROBE_HOME is not set; %s", "; ".join(words))
    return False


def unknown(environment: Mapping[str, str] = os.environ) -> list[str]:
    """Variables that are named like ours and are none, each with what may have been meant.

    >>> unknown({"LOGPROBE_RUN_NAME": "a", "LOGPROBE_HOME": "b"})
    ['LOGPROBE_RUN_NAME is not a variable of logprobe: did you mean LOGPROBE_RUN?']
    """
    names = {name for name in environment if name.startswith(_PREFIX) and not _OF_KUBERNETES.search(name)}
    names -= {*VARIABLES, *PASSED}
    return [f"{name} is not a variable of logprobe: {_near(name)}" for name in sorted(names)]


def _near(name: str) -> str:
    stems = [variable.removeprefix(_PREFIX) for variable in VARIABLES]
    near = get_close_matches(name.removeprefix(_PREFIX), stems, n=1, cutoff=0.5)
    return f"did you mean {_PREFIX}{near[0]}?" if near else "see docs/settings.md"


def pairs(text: str) -> dict[str, str]:
    """Return the options of a variable by name.

    >>> pairs("inject, prompts=0.01")
    {'inject': '', 'prompts': '0.01'}
    """
    parts = (part.partition("=") for part in text.split(",") if part.strip())
    return {name.strip(): value.strip() for name, _, value in parts}
