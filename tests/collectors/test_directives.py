"""Directives: what holds in a step, what is trusted, and what the file survives."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest

from logprobe.collectors.correction import CorrectionConfig
from logprobe.collectors.directives import DirectiveFile, Directives, decode, directive_key, encode
from logprobe.collectors.errors import ConfigurationError, DirectiveError

MIS = CorrectionConfig(is_level="token", is_mode="mask", is_lower=0.5, is_upper=5.0)
TIS = CorrectionConfig(is_level="token", is_mode="truncate", is_upper=2.0)
KEY = b"a key of sixteen"
ON = Directives("run").issue(100, MIS, "growth")


def configs(directives: Directives, *steps: int) -> list[CorrectionConfig | None]:
    return [None if entry is None else entry.config for entry in map(directives.at, steps)]


def test_an_entry_holds_from_its_step_until_the_next() -> None:
    directives = ON.issue(150, None, "off").issue(200, TIS, "again")
    assert configs(directives, 0, 99, 100, 149, 150, 199, 200, 10**9) == [None, None, MIS, MIS, None, None, TIS, TIS]
    assert directives.version == 3


def test_what_has_not_begun_is_superseded() -> None:
    directives = ON.issue(100, None, "changed my mind").issue(98, TIS, "and again")
    assert configs(directives, 97, 98, 100, 200) == [None, TIS, TIS, TIS]
    assert directives.version == 3


def test_the_kill_switch_beats_every_entry() -> None:
    assert Directives("run", ON.entries, stopped=True).at(120) is None


@pytest.mark.parametrize("key", [None, KEY])
def test_it_comes_back_as_it_was(key: bytes | None) -> None:
    directives = ON.issue(150, None, "off – aus “Gründen”")
    assert decode(encode(directives, key), "run", key) == directives


def changed(**fields: object) -> bytes:
    return json.dumps({**json.loads(encode(ON, None)), **fields}).encode()


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "not a directive"),
        (b"[]", "not a directive"),
        (b"null", "not a directive"),
        (encode(ON, None)[:-5], "not a directive"),
        (changed(format=2), "format 2"),
        (changed(run="other"), "of run 'other'"),
        (changed(entries=None), "invalid directive"),
        (changed(entries=[{"version": 1}]), "invalid directive"),
        (changed(entries=[{"version": 1, "from_step": True, "config": None, "reason": ""}]), "invalid directive"),
        (changed(entries=[{"version": 1, "from_step": 5, "config": {"is_levle": "token"}, "reason": ""}]), "is_level"),
        (changed(entries=[{"version": 1, "from_step": 5, "config": None, "reason": ""}] * 2), "out of order"),
    ],
)  # fmt: skip
def test_what_cannot_be_trusted_is_refused(data: bytes, words: str) -> None:
    with pytest.raises(DirectiveError, match=words):
        decode(data, "run", None)


@pytest.mark.parametrize("data", [encode(ON, None), encode(ON, b"another long key"), changed(signature="ünsigned")])
def test_with_a_key_only_its_signature_counts(data: bytes) -> None:
    with pytest.raises(DirectiveError, match="signature"):
        decode(data, "run", KEY)


def test_a_changed_number_breaks_the_signature() -> None:
    with pytest.raises(DirectiveError, match="signature"):
        decode(encode(ON, KEY).replace(b"5.0", b"9.0"), "run", KEY)


def test_the_file_is_readable_by_trainers_and_leaves_nothing_beside_it(tmp_path: Path) -> None:
    file = DirectiveFile(tmp_path, "a/run")
    assert file.read(None) == Directives("a/run")
    for version in (1, 2):
        file.write(Directives("a/run").issue(version, MIS, "growth"), None)
    assert file.read(None).at(2) is not None
    assert [path.name for path in file.path.parent.iterdir()] == [file.path.name]
    assert stat.S_IMODE(file.path.stat().st_mode) == 0o644


def test_the_kill_switch_works_whatever_the_file_says(tmp_path: Path) -> None:
    file = DirectiveFile(tmp_path, "run")
    file.stop("ann")
    file.path.write_bytes(b"rubbish")
    assert file.read(KEY).stopped
    assert file.release()
    assert not file.release()
    with pytest.raises(DirectiveError):
        file.read(KEY)


def test_a_file_is_decoded_again_when_its_content_or_the_key_is_another(tmp_path: Path) -> None:
    file = DirectiveFile(tmp_path, "run")
    file.write(ON, KEY)
    first = file.read(KEY)
    assert file.read(KEY) is first
    with pytest.raises(DirectiveError, match="signature"):
        file.read(b"another of sixteen")
    file.write(ON.issue(150, None, "off"), KEY)
    assert file.read(KEY).version == 2


def test_the_key_comes_from_the_environment_or_the_home(tmp_path: Path) -> None:
    assert directive_key(tmp_path, {}) is None
    (tmp_path / "directive.key").write_text("0123456789abcdef\n")
    (tmp_path / "directive.key").chmod(0o644)
    with pytest.raises(ConfigurationError, match="anyone who can read it can sign"):
        directive_key(tmp_path, {})
    (tmp_path / "directive.key").chmod(0o640)
    assert directive_key(tmp_path, {}) == b"0123456789abcdef"
    assert directive_key(tmp_path, {"LOGPROBE_DIRECTIVE_KEY": "fedcba9876543210"}) == b"fedcba9876543210"
    with pytest.raises(ConfigurationError, match="16 bytes"):
        directive_key(tmp_path, {"LOGPROBE_DIRECTIVE_KEY": "short"})


def test_the_257th_switch_displaces_the_oldest_and_the_largest_file_is_read_whole(tmp_path: Path) -> None:
    directives = Directives("run")
    for number in range(257):
        directives = directives.issue(10 * number, MIS, "🔴" * 10_000)
    assert (len(directives.entries), directives.version) == (256, 257)
    assert directives.at(9) is None
    file = DirectiveFile(tmp_path, "run")
    file.write(directives, None)
    assert file.path.stat().st_size < 1 << 20
    assert file.read(None) == directives
