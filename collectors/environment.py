"""The environment variables of logprobe, in one table. docs/settings.md says what each is for."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from difflib import get_close_matches
from functools import cache
from typing import Final

from logprobe.collectors.health import LOGGER

VARIABLES: Final = (
    "LOGPROBE_HOME", "LOGPROBE_RUN", "LOGPROBE_REPLICA", "LOGPROBE_SAMPLE_PREFIX", "LOGPROBE_RAW_FRACTION",
    "LOGPROBE_VLLM", "LOGPROBE_CORRECTION", "LOGPROBE_SERVICE", "LOGPROBE_TOKEN", "LOGPROBE_DIRECTIVE_KEY",
    "LOGPROBE_UMASK", "LOGPROBE_LIMITS",
)  # fmt: skip
PASSED: Final = ("LOGPROBE_DASHBOARD", "LOGPROBE_PROOF_READINGS")  # between processes of logprobe
_PREFIX: Final = "LOGPROBE_"
# Kubernetes sets these in every pod beside a service called logprobe, or logprobe-something.
_OF_KUBERNETES: Final = re.compile(r"_(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT(_\d+_\w+)?)$")
_CHANNEL: Final = "name a variable or a file of your own in `channels` of logprobe.yaml (docs/channels.md)"
_LIMITS: Final = (
    "settings_kib", "settings_values", "tokenizer_mib", "import_unit_mib", "import_memory_gib",
    "import_expansion", "import_free_mib", "relay_segment_mib", "relay_spool_gib", "relay_memory_gib",
)  # fmt: skip
# Names of the release before → what to do instead. Read in this release only.
FORMER: Final[Mapping[str, str]] = {
    "LOGPROBE_VLLM_INJECT": "write LOGPROBE_VLLM=inject",
    "LOGPROBE_VLLM_PROMPTS": "write LOGPROBE_VLLM=prompts=SHARE",
    "LOGPROBE_VLLM_HARMLESS": "write LOGPROBE_VLLM=harmless=METHOD:METHOD",
    "LOGPROBE_SERVICE_TOKEN": "write LOGPROBE_SERVICE=grpc+tls://HOST:PORT,token=FILE",
    "LOGPROBE_SERVICE_CA": "write LOGPROBE_SERVICE=grpc+tls://HOST:PORT,ca=FILE, or pass --ca FILE",
    "LOGPROBE_NODE": "write LOGPROBE_SERVICE=grpc+tls://HOST:PORT,node=NAME",
    "LOGPROBE_HOOKS": "leave it out; the folder of hooks on PYTHONPATH is enough (docs/frameworks.md)",
    "LOGPROBE_DEBUG": "write logprobe --debug COMMAND",
    "LOGPROBE_SLACK_TOKEN": _CHANNEL,
    "LOGPROBE_SLACK_CHANNEL": _CHANNEL,
    "LOGPROBE_SLACK_WEBHOOK": _CHANNEL,
    "LOGPROBE_WEBHOOK_URL": _CHANNEL,
    "LOGPROBE_WEBHOOK_SECRET": _CHANNEL,
    "LOGPROBE_APPRISE_URL": _CHANNEL,
    **{f"LOGPROBE_{name.upper()}": f"write LOGPROBE_LIMITS={name}=NUMBER" for name in _LIMITS},
}


def former(name: str, environment: Mapping[str, str] = os.environ) -> str | None:
    """What the variable `name` of the release before holds, with a notice, once in a process; None: it is not set, or
    empty."""
    value = environment.get(name) or None
    if value is not None:
        notice(name)
    return value


@cache
def notice(name: str) -> None:
    """Says what to do instead of setting the variable `name` of the release before."""
    LOGGER.warning(
        "%s: %s. The next release does not read this variable; where both are set, the new place counts.",
        name,
        FORMER[name],
    )


def wanted(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether a home is named, so that a plugin records. Where none is, the log says which variable may have been meant
    to."""
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
    files = [f"{name}_FILE" for name, instead in FORMER.items() if instead == _CHANNEL]
    names = {name for name in environment if name.startswith(_PREFIX) and not _OF_KUBERNETES.search(name)}
    names -= {*VARIABLES, *PASSED, *FORMER, *files}
    return [f"{name} is not a variable of logprobe: {_near(name)}" for name in sorted(names)]


def _near(name: str) -> str:
    stems = [variable.removeprefix(_PREFIX) for variable in VARIABLES]
    near = get_close_matches(name.removeprefix(_PREFIX), stems, n=1, cutoff=0.5)
    return f"did you mean {_PREFIX}{near[0]}?" if near else "see docs/settings.md"


def pairs(text: str) -> dict[str, str]:
    """What a variable of options says.

    >>> pairs("inject, prompts=0.01")
    {'inject': '', 'prompts': '0.01'}
    """
    parts = (part.partition("=") for part in text.split(",") if part.strip())
    return {name.strip(): value.strip() for name, _, value in parts}
