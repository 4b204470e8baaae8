"""Alerts: thresholds, liveness, states, mutes, the job, and dry runs of thresholds."""
