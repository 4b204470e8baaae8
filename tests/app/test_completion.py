"""`logprobe completion bash`, as a real bash completes with it."""

from __future__ import annotations

import subprocess

import pytest

from logprobe.app.cli import main
from logprobe.app.parsers.commands import COMMANDS

# What bash does when somebody presses Tab after these words.
_TAB = """
COMP_WORDS=({words}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)); COMPREPLY=()
_shtab_logprobe; printf '%s\\n' "${{COMPREPLY[@]}}"
"""


def completed(script: str, words: str) -> set[str]:
    done = subprocess.run(["bash", "-c", script + _TAB.format(words=words)], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_bash_completes_commands_options_and_choices(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", "bash"]) == 0
    script = capsys.readouterr().out
    assert completed(script, "logprobe ''") >= set(COMMANDS)
    assert completed(script, "logprobe pre") == {"preflight"}
    assert completed(script, "logprobe preflight --trai") == {"--trainer", "--trainer-args", "--trainer-dtype"}
    assert completed(script, "logprobe mis run a") == {"armed"}
    assert completed(script, "logprobe nothing-of-the-kind") == set()


@pytest.mark.parametrize("shell", ["zsh", "tcsh"])
def test_other_shells_have_a_script(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", shell]) == 0
    assert "preflight" in capsys.readouterr().out
