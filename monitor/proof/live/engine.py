"""A `vllm serve` endpoint, as far as the probe needs it: how busy it is, and log-probs of given tokens.

Prompt log-probs never read vLLM's prefix cache; a random `cache_salt` besides keeps the blocks they leave behind from
every other request. The mark in `vllm_xargs` tells logprobe's plugin that the request is not a rollout.
"""

from __future__ import annotations

import json
import math
import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from http.client import HTTPException
from typing import Any, Final
from urllib.error import HTTPError
from urllib.request import OpenerDirector, Request

import numpy as np

from logprobe.collectors.errors import EngineError
from logprobe.collectors.vllm.capture import PROBE
from logprobe.monitor.proof.sample import Floats

_SECONDS: Final = 20.0  # between two bytes
_MOST_BYTES: Final = 64 << 20  # of an answer: some 100 per token
_NO_PROBABILITY: Final = -9999.0  # JSON has no −inf; vLLM writes this
_GAUGE: Final = re.compile(r"^vllm:num_requests_(running|waiting)(?:\{[^\n]*\})?\s+(\S+)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Load:
    """Requests in the engine."""

    running: int
    waiting: int


@dataclass(frozen=True, slots=True)
class Model:
    """What is served; `longest`: tokens of prompt and answer, None: not stated."""

    name: str
    longest: int | None


class Engine:
    """One endpoint. Every method raises `EngineError`: ``unreachable``, ``refused`` or ``unexpected``."""

    def __init__(self, url: str, opener: OpenerDirector, *, key: str | None = None) -> None:
        """`url` without ``/v1``; `key`: its API key."""
        self._url = url.rstrip("/").removesuffix("/v1")
        self._opener = opener
        self._headers = {"Content-Type": "application/json", **({"Authorization": f"Bearer {key}"} if key else {})}

    def load(self) -> Load:
        """Read from ``/metrics``, summed over its engines."""
        counts = {"running": 0.0, "waiting": 0.0}
        seen = set()
        for name, value in _GAUGE.findall(self._call("/metrics").decode("utf-8", "replace")):
            counts[name] += _number(value)
            seen.add(name)
        if seen != set(counts):
            raise EngineError(
                "unexpected",
                f"{self._url}/metrics does not have vllm:num_requests_running and _waiting: is this `vllm serve`, "
                "without --disable-log-stats?",
            )
        return Load(round(counts["running"]), round(counts["waiting"]))

    def model(self) -> Model:
        """The base model: the first that is listed."""
        try:
            first = json.loads(self._call("/v1/models"))["data"][0]
            return Model(str(first["id"]), first.get("max_model_len"))
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            raise EngineError("unexpected", f"{self._url}/v1/models does not list a model") from error

    def score(self, model: Model, prompt: Sequence[int], response: Sequence[int]) -> Floats:
        """Log-probs of `response` after `prompt`, at temperature 1; −inf where the engine gives a token no
        probability."""
        tokens = [*prompt, *response]
        body = {
            "model": model.name,
            "prompt": tokens,
            "max_tokens": 1,
            "temperature": 1.0,
            "prompt_logprobs": 0,
            "cache_salt": secrets.token_hex(8),
            "vllm_xargs": {PROBE: 1},
        }
        answer = self._call("/v1/completions", json.dumps(body).encode())
        try:
            rows = json.loads(answer)["choices"][0]["prompt_logprobs"]
            return np.array(
                [_of(row, token) for row, token in zip(rows, tokens, strict=True)][len(prompt) :], np.float64
            )
        except (ValueError, LookupError, TypeError) as error:
            raise EngineError("unexpected", f"{self._url} did not return prompt log-probs ({error})") from error

    def _call(self, path: str, body: bytes | None = None) -> bytes:
        request = Request(f"{self._url}{path}", body, self._headers)  # noqa: S310 - the opener takes http and https only
        try:
            with self._opener.open(request, timeout=_SECONDS) as answer:
                content: bytes = answer.read(_MOST_BYTES + 1)
        except HTTPError as error:
            raise EngineError("refused", f"{self._url}{path}: HTTP {error.code}: {_words(error)}") from error
        except (OSError, HTTPException) as error:
            raise EngineError("unreachable", f"{self._url} cannot be reached ({error})") from error
        if len(content) > _MOST_BYTES:
            raise EngineError("unexpected", f"{self._url}{path} answered with more than {_MOST_BYTES >> 20} MiB")
        return content


def _words(error: HTTPError) -> str:
    """What the engine says of a refusal, on one line."""
    return " ".join(error.read(2000).decode("utf-8", "replace").split())[:300]


def _number(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise EngineError("unexpected", f"a number of requests is {text!r}")
    return value


def _of(row: Mapping[str, Any] | None, token: int) -> float:
    if row is None:  # the first token has none
        return math.nan
    value = float(row[str(token)]["logprob"])
    return -math.inf if value <= _NO_PROBABILITY else value
