"""What other frameworks would log for the same tokens: `view` recomputes their numbers under their own keys.

A framework is a module and not rows of a table: what is common to them (options, keys, what a summary shows) is data
already, and in the rest they differ key by key: by what they divide, what they clamp, where they mask, and what becomes
of a NaN or an empty sequence.

from logprobe.monitor import peers

peers.view("verl", rollout_logprobs, trainer_logprobs, mask, rollout_is="token", rollout_is_threshold=2.0)
"""

from logprobe.monitor.peers.view import PEERS, Correction, Report, correction, named, view

__all__ = ["PEERS", "Correction", "Report", "correction", "named", "view"]
