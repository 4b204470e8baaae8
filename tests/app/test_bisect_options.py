"""Options of `logprobe bisect` that do not go together: a usage error that says which to leave out, before anything starts."""

from __future__ import annotations

import pytest

from logprobe.app.cli import main


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            "r --only-score --knobs dtype --minutes 3",
            "--only-score: no setting is changed; leave out --knobs, --minutes",
        ),
        ("r --only-score --at 3 --against trainer", "--only-score: no setting is changed; leave out --at, --against"),
        ("r --exact", "--exact: pass --only-score, too"),
        ("--sample a.jsonl --at 3", "--at: pass a RUN; a sample file has no steps"),
        ("--only-score", "pass a RUN or --sample FILE"),
    ],
)
def test_options_that_do_not_go_together(words: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["bisect", *words.split()])
    assert ended.value.code == 2
    assert capsys.readouterr().err == f"logprobe: {said}; see: logprobe bisect --help\n"
