"""verl's entry point: `import verl` loads this module. Without ``LOGPROBE_HOME`` nothing happens; with it, verl's
trainers are recorded."""

from __future__ import annotations

from logprobe.collectors.environment import wanted
from logprobe.collectors.integrations import verl

if wanted():
    verl.register()
