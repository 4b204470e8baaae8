"""Offline comparison of runs with a baseline, from data directories or from files with recorded runs.

from logprobe.monitor.compare import Places, compare

with Places(home) as places:
    print(compare([places.find("v1")], places.find("v0")).document())
"""

from logprobe.monitor.compare.comparison import Comparison, MetricVerdict, Pairing, compare, compared
from logprobe.monitor.compare.history import History, history
from logprobe.monitor.compare.places import Place, Places

__all__ = ["Comparison", "History", "MetricVerdict", "Pairing", "Place", "Places", "compare", "compared", "history"]
