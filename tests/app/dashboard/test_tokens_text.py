"""Text of tokens comes from a file of this machine that the home names, and from nowhere else."""

from __future__ import annotations

import json
import runpy
from pathlib import Path

import pytest
from recorded_home import SAMPLE_DATA
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from logprobe.app import demo
from logprobe.app.dashboard.reading.tokenizers import vocabulary
from logprobe.collectors.errors import ConfigurationError

# What a policy may write; every piece is one token of the vocabulary.
PIECES = [
    "<script>alert(1)</script>", "<img src=x onerror=alert(1)>", "\u202egnp.exe", "\x00\x1b[31m", "\u200b", "\n", "  ", "the", " answer",
    " is", " 42", "مرحبا", "日本", "`code`", "=SUM(A1)", "&amp;", "\u0301",
]  # fmt: skip


def tokenizer() -> Tokenizer:
    """A byte-level vocabulary, as those of large models are, with `PIECES` behind the 256 bytes."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    made = Tokenizer(models.BPE(vocab={letter: place for place, letter in enumerate(letters)}, merges=[]))
    made.decoder = decoders.ByteLevel()
    made.add_tokens([AddedToken(piece, normalized=False) for piece in PIECES])
    return made


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A byte-level tokenizer, in a folder of its own as models have it."""
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "tokenizer.json").write_text(tokenizer().to_str(), encoding="utf-8")
    return folder


def named(home: Path, text: str) -> Path:
    (home / "logprobe.yaml").write_text(f"tokenizers:\n  {text}", encoding="utf-8")
    return home


def texts(home: Path, run: str, ids: list[int]) -> dict[int, str]:
    found = vocabulary(home, run)
    assert found is not None
    return found.texts(ids)


def test_added_tokens_are_what_they_are_bytes_what_they_stand_for_and_a_new_file_is_read(
    tmp_path: Path, file: Path
) -> None:
    home = named(tmp_path, "mine-*: model/tokenizer.json\n")
    assert vocabulary(home, "other") is None
    path = file / "tokenizer.json"
    made = Tokenizer.from_file(str(path))
    ids = [made.token_to_id(piece) for piece in PIECES]
    assert list(texts(home, "mine-1", ids).values()) == PIECES
    bytes_of = {
        made.token_to_id(letter): text for letter, text in {"Ġ": " ", "Ċ": "\n", "a": "a", "â": "\udce2"}.items()
    }
    assert texts(home, "mine-1", list(bytes_of)) == bytes_of
    assert texts(home, "mine-1", [-1, 10**6]) == {}
    made.add_tokens(["newer"])
    path.write_text(made.to_str(), encoding="utf-8")
    known = made.token_to_id("newer")
    assert texts(home, "mine-1", [known]) == {known: "newer"}
    (home / "logprobe.yaml").unlink()
    assert vocabulary(home, "mine-1") is None


def test_words_of_sentence_piece_and_its_bytes(tmp_path: Path) -> None:
    made = Tokenizer(models.WordLevel({"\u2581the": 0, "<0xE2>": 1, "<0x0A>": 2, "Ġ": 3}, unk_token="Ġ"))
    made.decoder = decoders.Metaspace()
    (tmp_path / "tokenizer.json").write_text(made.to_str(), encoding="utf-8")
    home = named(tmp_path, '"*": tokenizer.json\n')
    assert texts(home, "run", [0, 1, 2, 3]) == {0: " the", 1: "\udce2", 2: "\n", 3: "Ġ"}


@pytest.mark.parametrize(
    "model",
    [
        models.BPE({"a": 0, "b": 1, "ab": 2}, [("a", "b")]),
        models.WordPiece({"a": 0, "b": 1, "##b": 2}, unk_token="a"),
        models.Unigram([("a", 0.0), ("b", -1.0), ("ab", -0.5)], unk_id=0),
    ],
    ids=["BPE", "WordPiece", "Unigram"],
)
def test_ids_are_those_of_the_package_that_wrote_the_file(tmp_path: Path, model: models.Model) -> None:
    made = Tokenizer(model)
    made.add_tokens(["more"])
    made.add_special_tokens(["<end>"])
    (tmp_path / "tokenizer.json").write_text(made.to_str(), encoding="utf-8")
    ids = list(range(made.get_vocab_size()))
    assert texts(named(tmp_path, '"*": tokenizer.json\n'), "run", ids) == {at: made.id_to_token(at) for at in ids}


def test_the_shipped_runs_have_the_words_that_they_were_made_of() -> None:
    files = {"task": SAMPLE_DATA / "tokenizers" / "task.json", "rescue": Path(demo.__file__).with_name("rescue.json")}
    written = {name: json.loads(path.read_text())["model"]["vocab"] for name, path in files.items()}
    task = runpy.run_path(str(SAMPLE_DATA / "task.py"))["VOCABULARY"]
    assert list(written["task"].items()) == [(piece, at) for at, piece in enumerate(task)]
    assert list(written["rescue"].items()) == [(str(digit), digit) for digit in range(10)]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("- a list\n", "Input should be a valid dictionary"),
        ('"*": [a]\n', "Input should be a valid string"),
        ('"*": gone.json\n', "no tokenizer at"),
        ('"*": broken.json\n', "is no tokenizer.json"),
        ('"*": list.json\n', "is no tokenizer.json"),
        ('"*": empty.json\n', "is no tokenizer.json: model: Field required"),
    ],
)
def test_what_cannot_be_read_is_named(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "broken.json").write_text("{", encoding="utf-8")
    (tmp_path / "list.json").write_text("[1]", encoding="utf-8")
    (tmp_path / "empty.json").write_text(json.dumps({"version": "1.0"}), encoding="utf-8")
    with pytest.raises(ConfigurationError, match=message):
        vocabulary(named(tmp_path, content), "run")
