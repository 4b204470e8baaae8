"""Judge a run from positive evidence: the place of the mismatch, its cause, and the remedy.

    from logprobe.monitor.judging.diagnosing import diagnose

    with open_reader(home) as reader:
        print(diagnose(reader, "my-run"))

`gather.gather` reads a `frame.Frame` of plain columns, `judge.judge` returns a `judgement.Judgement` of it, and
`explain` writes it as text. Five tests examine a frame (`counted`, `declared`, `distribution`, `contrast`, `course`).
`signatures.yaml` lists every cause with the test that names it and the recorded facts that exclude it.
`thresholds.yaml` holds every number.
"""
