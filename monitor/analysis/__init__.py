"""Values computed from stored sequences: step metrics, slices, profiles, single tokens."""
