"""Names of sampled sequences that engine and trainer can both compute.

Inside vLLM a request has an internal id that the caller never receives (``<request id>-<8 hex digits>``, and
``<index>_<request id>-<8 hex digits>`` for the children of ``n > 1``). Both sides know the caller's request id and the
index of the completion, which therefore form the sample's name::

    sample id = [prefix +] "<request id>/<completion index>"

The caller's request id is ``RequestOutput.request_id`` in Python. Over HTTP it is derived from the ``id`` of the
response. `LLM` numbers its requests from 0 in every process. Ranks (``RANK``, ``WORLD_SIZE``) with an engine each
therefore have a prefix by default. For other engines that write into one run (such as a restarted one), set
``LOGPROBE_RECORD=prefix=…`` in the engine's environment and here. Set it to an empty value where ranks name samples of
a separate engine.
"""

from __future__ import annotations

import hashlib
import os
import re
from array import array
from collections.abc import Iterable
from typing import Any, Final

from logprobe.collectors.environment import option
from logprobe.collectors.errors import InputError

TRAJECTORY_KEY: Final = "logprobe_sample"  # in `SamplingParams.extra_args`
_RANDOM: Final = re.compile(r"-[0-9a-f]{8}")
_CHILD: Final = re.compile(r"(\d+)_(.*)", re.DOTALL)


def sample_id(request_output: Any, completion_index: int = 0, *, prefix: str | None = None) -> str:
    """Return the sample id of one completion, equal to the plugin's.

    Args:
        request_output: a vLLM `RequestOutput`, or the request id (a string) that was given to `AsyncLLM.generate` or
            `LLMEngine.add_request`.
        completion_index: `CompletionOutput.index`.
        prefix: prefix of the ids, by default `sample_prefix` of this process, which must then equal the engine's.

    >>> sample_id("rollout-17", 3, prefix="")
    'rollout-17/3'
    """
    request_id = request_output if isinstance(request_output, str) else request_output.request_id
    return f"{sample_prefix() if prefix is None else prefix}{request_id}/{completion_index}"


def sample_ids(request_output: Any, *, prefix: str | None = None) -> list[str]:
    """Return the sample ids of all completions of a `RequestOutput`, in its order."""
    return [sample_id(request_output, completion.index, prefix=prefix) for completion in request_output.outputs]


def response_sample_id(
    response_id: str, choice_index: int = 0, *, n: int = 1, prompts: int = 1, prefix: str | None = None
) -> str:
    """Return the sample id of one choice of an answer of ``vllm serve``.

    Args:
        response_id: ``id`` of the answer, ``cmpl-…`` or ``chatcmpl-…``. With a header ``X-Request-Id: x`` it ends in
            ``x``.
        choice_index: ``index`` of the choice.
        n: ``n`` of the request.
        prompts: number of prompts in the request. Only ``/v1/completions`` takes more than one.
        prefix: prefix of the ids, by default the option ``prefix`` of this process. Answer ids differ between servers,
            so ranks add no prefix.

    >>> response_sample_id("chatcmpl-x", 1, n=2, prefix="")
    'chatcmpl-x/1'
    >>> response_sample_id("cmpl-x", 3, n=2, prompts=2, prefix="")
    'cmpl-x-1/1'
    """
    prefix = (option("prefix") or "") if prefix is None else prefix
    if not 0 <= choice_index < n * prompts:
        raise InputError(
            f"choice {choice_index} of a request with {prompts} prompts and n={n} is out of range; pass the request's n"
        )
    if not response_id.startswith("cmpl-"):
        return sample_id(response_id, choice_index, prefix=prefix)
    # The completions endpoint sends one engine request per prompt, and numbers them even when there is only one.
    return sample_id(f"{response_id}-{choice_index // n}", choice_index % n, prefix=prefix)


def sample_prefix() -> str:
    """Return the prefix of this process's sample ids.

    It is the option ``prefix``, else ``rank<RANK>-`` if ``WORLD_SIZE`` is above 1, else "". Ranks with an engine each
    number their requests from 0.
    """
    prefix, rank = option("prefix"), os.environ.get("RANK", "")
    if prefix is not None:
        return prefix
    several = rank.isdigit() and os.environ.get("WORLD_SIZE", "1") not in {"", "1"}
    return f"rank{rank}-" if several else ""


def split_internal(internal_id: str, external_id: str | None) -> tuple[str, int]:
    """Return the caller's request id and the completion index of an internal id of vLLM.

    With `external_id` (vLLM keeps it in `EngineCoreRequest.external_req_id`) the result is exact. Without it, the form
    of the internal id decides. A caller's id that starts with digits and an underscore is then mistaken for a child's.

    >>> split_internal("2_a-0123abcd", "a")
    ('a', 2)
    >>> split_internal("2_a-0123abcd", "2_a")
    ('2_a', 0)
    >>> split_internal("2_a-0123abcd", None)
    ('a', 2)
    """
    if external_id is not None:
        return external_id, _child_index(internal_id, external_id)
    name = internal_id[:-9] if _RANDOM.fullmatch(internal_id[-9:]) else internal_id
    child = _CHILD.fullmatch(name)
    return (child[2], int(child[1])) if child else (name, 0)


def _child_index(internal_id: str, external_id: str) -> int:
    if internal_id == external_id or _RANDOM.fullmatch(internal_id.removeprefix(external_id)):
        return 0
    index, _, rest = internal_id.partition("_")
    # The parent's id carries the random part unless VLLM_DISABLE_REQUEST_ID_RANDOMIZATION is set.
    ours = rest == external_id or (rest.startswith(external_id) and _RANDOM.fullmatch(rest[len(external_id) :]))
    return int(index) if index.isdigit() and ours else 0


def trajectory(params: Any, internal_id: str, external_id: str | None) -> str | None:
    """Return the caller's name of the sequence that contains a request.

    It is ``SamplingParams.extra_args["logprobe_sample"]``, over HTTP in ``vllm_xargs``. With ``n > 1`` each completion
    is a sequence named ``<name>/<completion index>``.
    """
    name = (getattr(params, "extra_args", None) or {}).get(TRAJECTORY_KEY)
    if name is None:
        return None
    _, index = split_internal(internal_id, external_id)
    is_child = index > 0 or (external_id is not None and internal_id.startswith(f"0_{external_id}-"))
    return f"{name}/{index}" if is_child else str(name)


def prompt_hash(token_ids: Iterable[int]) -> str:
    """Return 16 hex digits that identify a prompt: BLAKE2b of its token ids as little-endian int32 bytes.

    >>> prompt_hash([1, 2, 3])
    'd69c56745f6a3d9e'
    """
    values = array("i", token_ids)
    if array("H", [1]).tobytes() != b"\x01\x00":
        values.byteswap()
    return hashlib.blake2b(values.tobytes(), digest_size=8).hexdigest()
