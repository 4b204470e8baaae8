"""verl's entry point: `import verl` loads this module. Without ``LOGPROBE_HOME`` nothing happens; with it, verl's
trainers are recorded."""

from __future__ import annotations

import os

from logprobe.collectors.integrations import verl

if os.environ.get("LOGPROBE_HOME"):
    verl.register()
