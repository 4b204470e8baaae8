"""The live probe: a running engine scores a few of its sequences again, past its caches, with the same weights."""
