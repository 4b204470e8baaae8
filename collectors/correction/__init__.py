"""Corrections of the objective for the gap that remains between rollout and trainer: weights and masks for token losses."""
