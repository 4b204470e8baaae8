"""Entry point of verl: `import verl` loads this module, which hooks verl's trainers if ``LOGPROBE_HOME`` is set."""

from __future__ import annotations

from logprobe.collectors.environment import wanted
from logprobe.collectors.integrations import verl

if wanted():
    verl.register()
