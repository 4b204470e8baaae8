"""Parity with a reference: is a run set up like it, and does it behave like it?"""

from logprobe.monitor.judging.parity.judging import Check, Parity, Setting, compare, differing, trends

__all__ = ["Check", "Parity", "Setting", "compare", "differing", "trends"]
