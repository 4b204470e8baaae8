"""Three verifiable toy tasks on characters, and the tokenizer they need.

Every prompt opens with the same few worked examples of its task, longer than one block of the engine's prefix cache: without
those the cache would never matter. The answer is a character string that a program can check.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

PAD, BOS, EOS = 0, 1, 2
LETTERS: Final = "abcdefghij"
DIGITS: Final = "0123456789"
VOCABULARY: Final[tuple[str, ...]] = ("<pad>", "<bos>", "<eos>", *"SRN:>;", *DIGITS, *LETTERS)
_ID_OF: Final = {character: index for index, character in enumerate(VOCABULARY)}
STOP: Final = _ID_OF[";"]  # ends an answer
_EXAMPLES_SEED: Final = 7  # the worked examples are part of the task, the same in every run


def encode(text: str) -> list[int]:
    """Token ids of `text`, one per character. Raises `KeyError` for a character outside the vocabulary."""
    return [_ID_OF[character] for character in text]


def decode(token_ids: Sequence[int]) -> str:
    """The characters of `token_ids`, special tokens left out."""
    return "".join(VOCABULARY[token] for token in token_ids if token > EOS)


def _sorted(query: str) -> str:
    return "".join(sorted(query))


def _reversed(query: str) -> str:
    return query[::-1]


def _successors(query: str) -> str:
    return "".join(str((int(digit) + 1) % 10) for digit in query)


def _letters(rng: random.Random, length: int) -> str:
    return "".join(rng.choices(LETTERS, k=length))


def _digits(rng: random.Random, length: int) -> str:
    return "".join(rng.choices(DIGITS, k=length))


@dataclass(frozen=True, slots=True)
class Task:
    """One kind of question: how to make one, how to answer it, how its prompts open."""

    name: str
    marker: str
    lengths: tuple[int, int]  # characters of the answer, both ends included
    query: Callable[[random.Random, int], str]
    solve: Callable[[str], str]

    def sample(self, rng: random.Random, lengths: tuple[int, int] | None = None) -> Problem:
        """A random problem, its answer of a length in `lengths` (default: the task's)."""
        query = self.query(rng, rng.randint(*(lengths or self.lengths)))
        return Problem(self, query, self.solve(query))

    @property
    def preamble(self) -> str:
        """Worked examples that open every prompt: at least 32 characters, one block of the prefix cache."""
        rng = random.Random(_EXAMPLES_SEED)
        text = f"{self.marker}:"
        while len(text) < 32:
            query = self.query(rng, 5)
            text += f"{query}>{self.solve(query)};"
        return text


@dataclass(frozen=True, slots=True)
class Problem:
    """One question with its only right answer."""

    task: Task
    query: str
    answer: str

    def prompt_ids(self) -> list[int]:
        """What the engine is given."""
        return [BOS, *encode(f"{self.task.preamble}{self.query}>")]

    def answer_ids(self) -> list[int]:
        """What it should say, stop token included."""
        return [*encode(self.answer), STOP]

    def reward(self, token_ids: Sequence[int]) -> float:
        """1 for the right answer, else half of the fraction of leading characters that are right."""
        given = list(token_ids)
        wanted = self.answer_ids()
        if given == wanted:
            return 1.0
        right = 0
        for a, b in zip(given, wanted, strict=False):
            if a != b:
                break
            right += 1
        return 0.5 * right / len(wanted)


TASKS: Final[tuple[Task, ...]] = (
    Task("sort", "S", (6, 12), _letters, _sorted),
    Task("reverse", "R", (6, 12), _letters, _reversed),
    Task("successor", "N", (6, 12), _digits, _successors),
)


def draw(rng: random.Random) -> Problem:
    """A problem of any task."""
    return rng.choice(TASKS).sample(rng)
