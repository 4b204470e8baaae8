"""Parity of a run with a reference, in setup and in behaviour."""

from logprobe.monitor.judging.parity.judging import Check, Parity, Setting, compare, differing, trends

__all__ = ["Check", "Parity", "Setting", "compare", "differing", "trends"]
