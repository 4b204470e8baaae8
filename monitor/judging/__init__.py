"""Judge a run from positive evidence: first where the mismatch is, then why, then what to do about it.

    from logprobe.monitor.judging.diagnosing import diagnose

    with open_reader(home) as reader:
        print(diagnose(reader, "my-run"))

`gather.gather` reads a `frame.Frame` of plain columns, `judge.judge` returns a `judgement.Judgement` of it and
`explain` says it in words. Five tests look at a frame (`counted`, `declared`, `distribution`, `contrast`, `course`).
`signatures.yaml` lists every cause with the test that names it and the facts on record that exclude it.
`thresholds.yaml` holds every number.
"""
