"""What the probe may do, as an entry of the section ``probe`` or the arguments of `logprobe probe` say."""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import Annotated, Final

from pydantic import Field

from logprobe.monitor.settings_file import Settings

SHARE: Final = 0.001
SEQUENCES: Final = 4
RUNNING: Final = 32


class ProbeSettings(Settings):
    """One engine that is probed."""

    url: Annotated[str, Field(pattern=r"^https?://[^\s/@]+(/[^\s]*)?$")]  # of `vllm serve`, without /v1
    runs: str = "*"  # a pattern of run names, as of files; the newest run that matches is probed
    replica: str | None = None  # required when the run has several engines
    every: Annotated[float, Field(ge=1, le=86400)] = 60.0  # seconds between two looks
    share: Annotated[float, Field(gt=0, le=1)] = SHARE  # of the run's sampled tokens that may be scored again
    sequences: Annotated[int, Field(ge=1, le=256)] = SEQUENCES  # per look, at most
    running: Annotated[int, Field(ge=0)] = RUNNING  # with more requests in the engine it counts as busy
    key_env: str | None = None  # environment variable with the engine's API key

    def wants(self, run: str) -> bool:
        """Whether the run is to be probed."""
        return fnmatchcase(run, self.runs)
