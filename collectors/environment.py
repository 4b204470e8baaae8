"""Environment variables of logprobe, in the table from which docs/reference.md is generated."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from difflib import get_close_matches
from typing import Final, NamedTuple

from logprobe.collectors.health import LOGGER

RECORD: Final = "LOGPROBE_RECORD"


class Variable(NamedTuple):
    """Reader and meaning of a variable."""

    reader: str
    words: str


VARIABLES: Final[Mapping[str, Variable]] = {
    "LOGPROBE_HOME": Variable("all", "data directory, or address of a bucket; collectors record nothing without it"),
    "LOGPROBE_RUN": Variable("trainer, engine", "name of the run"),
    "LOGPROBE_REPLICA": Variable("engine", "name of the engine where a run has several"),
    "LOGPROBE_CORRECTION": Variable("trainer", "`1`: the controller may correct"),
    RECORD: Variable(
        "trainer, engine",
        "options of recording, such as `inject,prompts=0.01`. `quiet`: no line on stderr when recording begins. `raw=0.05`: "
        "share of sequences whose raw tokens are kept. `inject`: log-probs for requests that did not ask. `prompts=0.01`: "
        "share of distinct prompts that are recorded. `harmless=a:b`: your `collective_rpc` methods that leave weights "
        "alone. `prefix=NAME`: prefix of sample ids where several `LLM` objects write to one run",
    ),
    "LOGPROBE_DIRECTIVE_KEY": Variable("service, trainer", "key that directives are signed with"),
    "LOGPROBE_UMASK": Variable("service", "which users may share a data directory, such as `007`"),
    "LOGPROBE_LIMITS": Variable("service, commands", "limits for files, such as `import_unit_mib=128`"),
}
OPTIONS: Final = ("quiet", "raw", "inject", "prompts", "harmless", "prefix")  # of `RECORD`
PASSED: Final = ("LOGPROBE_DASHBOARD", "LOGPROBE_PROOF_READINGS")  # between processes of logprobe
_PREFIX: Final = "LOGPROBE_"
_LIKE_PREFIX: Final = re.compile(r"LOG_?PROBE?S?_")  # and how users misspell it
# Kubernetes sets these in every pod beside a service called logprobe, or logprobe-something.
_OF_KUBERNETES: Final = re.compile(r"_(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT(_\d+_\w+)?)$")


def wanted(environment: Mapping[str, str] = os.environ) -> bool:
    """Return whether the environment names a data directory, so that a plugin records.

    Without one, log the variable that the user may have meant to set.
    """
    if environment.get("LOGPROBE_HOME"):
        return True
    if words := unknown(environment):
        LOGGER.warning("nothing is recorded, as LOGPROBE_HOME is not set; %s", "; ".join(words))
    return False


def unknown(environment: Mapping[str, str] = os.environ) -> list[str]:
    """Return unknown options, and unknown variables with the prefix of logprobe or one like it, with a suggestion.

    >>> unknown({"LOGPROBE_RUN_NAME": "a", "LOGPROBE_HOME": "b"})
    ['LOGPROBE_RUN_NAME is not a variable of logprobe: did you mean LOGPROBE_RUN?']
    """
    names = {name for name in environment if _LIKE_PREFIX.match(name) and not _OF_KUBERNETES.search(name)}
    names -= {*VARIABLES, *PASSED}
    named = [f"{name} is not a variable of logprobe: {_near(name)}" for name in sorted(names)]
    return [*named, *filter(None, [unknown_options(environment)])]


def _near(name: str) -> str:
    stems = [variable.removeprefix(_PREFIX) for variable in VARIABLES]
    near = get_close_matches(_LIKE_PREFIX.sub("", name), stems, n=1, cutoff=0.5)
    return f"did you mean {_PREFIX}{near[0]}?" if near else "see docs/reference.md"


def pairs(text: str) -> dict[str, str]:
    """Return the options of a variable by name.

    >>> pairs("inject, prompts=0.01")
    {'inject': '', 'prompts': '0.01'}
    """
    parts = (part.partition("=") for part in text.split(",") if part.strip())
    return {name.strip(): value.strip() for name, _, value in parts}


def option(name: str, environment: Mapping[str, str] = os.environ) -> str | None:
    """Return the value of an option of `RECORD`, "" if the option has no value, or None if it is not set."""
    return pairs(environment.get(RECORD, "")).get(name)


def injects(environment: Mapping[str, str] = os.environ) -> bool:
    """Return whether the plugin computes log-probs for requests that did not ask for them."""
    return option("inject", environment) in {"", "1", "true", "yes"}


def unknown_options(environment: Mapping[str, str] = os.environ) -> str:
    """Return the problem of `RECORD`, or "" if it is valid."""
    names = ", ".join(sorted(pairs(environment.get(RECORD, "")).keys() - set(OPTIONS)))
    return f"{RECORD}: {names}: not known and without effect; known are {', '.join(OPTIONS)}" if names else ""
