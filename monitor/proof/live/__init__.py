"""The live probe: a running engine scores a few of its own sequences again, past its caches, with the same weights."""
