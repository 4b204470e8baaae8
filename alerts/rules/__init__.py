"""Alerts: thresholds, liveness, states, mutes, the job, trying thresholds out."""
