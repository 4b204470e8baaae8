"""Sufficient statistics per sequence: columns and the arithmetic behind them, for numpy and torch."""
