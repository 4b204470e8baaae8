"""What other frameworks would log for the same tokens: `view` recomputes their numbers under their own keys.

from logprobe.monitor import peers

peers.view("verl", rollout_logprobs, trainer_logprobs, mask, rollout_is="token", rollout_is_threshold=2.0)
"""

from logprobe.monitor.peers.view import PEERS, Correction, Report, correction, named, view

__all__ = ["PEERS", "Correction", "Report", "correction", "named", "view"]
