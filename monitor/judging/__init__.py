"""Judge a run from positive evidence: first where the mismatch is, then why.

`judge.judge` takes a `frame.Frame` of plain columns and returns a `judgement.Judgement`. Five tests look at the frame
(`counted`, `declared`, `distribution`, `contrast`, `course`). `signatures.yaml` lists every cause with the test that
names it and the facts on record that exclude it. `thresholds.yaml` holds every number. Nothing here reads a store, a
clock or the network.
"""
