"""Entry point `vllm.general_plugins`: every vLLM process of the environment calls `register` when it starts.

If ``LOGPROBE_HOME`` is set (and ``LOGPROBE_RUN`` names the run), the plugin watches the engine core of that process,
see `attach`. It never changes the front-end. It therefore works with `LLM`, `AsyncLLM`, ``vllm serve`` with any number
of API servers, and other front-ends.

=========================  =======================================================================================
``LOGPROBE_HOME``          data directory; if unset, the plugin is inactive
``LOGPROBE_RUN``           the run
``LOGPROBE_REPLICA``       name of this engine, if there are several
``LOGPROBE_RECORD``        further options, see `environment`
=========================  =======================================================================================
"""

# No import of anything else up here: this module is loaded in every vLLM process, mostly to find that it has nothing to
# do.
from __future__ import annotations

import logging
import os


def register() -> None:
    """Register the plugin. vLLM calls this in each process, possibly more than once. Never raise."""
    if not any(name.startswith("LOGPROBE_") for name in os.environ):
        return
    try:
        from logprobe.collectors.environment import wanted  # noqa: PLC0415

        if wanted():
            from logprobe.collectors.vllm import attach  # noqa: PLC0415

            attach.install()
    except Exception:  # vLLM lets errors of plugins end its process; a broken installation of ours must not
        logging.getLogger("logprobe").exception("the vLLM plugin could not start; this process is not recorded")


def flush(timeout: float = 10.0) -> bool:
    """Write all finished requests of engines in this process, for scripts that run the engine in their own process.

    Return True if all of them are durable, or if the plugin is not active.
    """
    if not os.environ.get("LOGPROBE_HOME"):
        return True
    from logprobe.collectors.vllm import attach  # noqa: PLC0415

    return attach.flush(timeout)
