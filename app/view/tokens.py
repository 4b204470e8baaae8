"""`logprobe show RUN --tokens [--steps N]`: show the tokens of a step's worst sequence, coloured by their ratio.

The JSON form: ``{"run", "step", "pair", "sequences": [{"sample_id", "share"}], "sample_id", "tokens": [{"position",
"id", "text", "state", "behaviour", "policy", "ratio", "k3"}]}``; `text` is null without a tokenizer. Numbers are null
if they cannot be measured.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from logprobe.app.dashboard.reading.tokenizers import vocabulary
from logprobe.app.dashboard.reading.tokens import StepTokens, read_step, read_steps
from logprobe.app.runs import run_reader
from logprobe.app.surface.arguments import Arguments, home_path, refuse_usage
from logprobe.app.text import tables
from logprobe.app.text.numbers import number
from logprobe.app.text.terminal import painted
from logprobe.collectors.errors import ConfigurationError
from logprobe.collectors.kernel.pairs import Pair
from logprobe.collectors.plain_text import harmless
from logprobe.monitor.analysis.token_view import FIRST_BROKEN, SIDES, STATES, pair_tokens, read_tokens
from logprobe.monitor.reader import Reader

_WORST: Final = 10
_BELOW, _ABOVE, _BROKEN, _MASKED = 39, 208, 160, 244  # of the 256 colours of terminals: blue, orange, red, grey
_NOTICEABLE: Final = 0.05  # |ρ − 1| from which a token has a colour


def show(arguments: Arguments) -> int:
    """Print the strip with the worst tokens below."""
    home, (step, last) = Path(home_path(arguments)), arguments.steps
    pair: Pair = arguments.pair or "backend"
    if step != last:
        refuse_usage("--tokens: name one step, as in --steps 12")
    with run_reader(arguments) as reader:
        document = describe(reader, home, arguments.name, step=step, pair=pair, sample=arguments.sequence)
    if arguments.json:
        print(tables.dump(document))
    else:
        _show(document)
    return 0


def describe(
    reader: Reader, home: Path, run: str, *, step: int | None, pair: Pair = "backend", sample: str | None = None
) -> dict[str, Any]:
    """Return the document of the command. `step`: number of the step, or None for the worst recent one.

    Raises `ConfigurationError` if the tokens do not exist.
    """
    steps = read_steps(reader, run, pair)
    number_of = steps.suggested() if step is None else step
    if number_of is None or number_of not in steps.step:
        recorded = f"choose one of {steps.step[0]} to {steps.step[-1]}" if len(steps.step) else "record a step first"
        raise ConfigurationError(f"run {run!r} has no step {number_of}; {recorded}")
    step_tokens = read_step(reader, run, number_of, pair, sample)
    chosen = step_tokens.chosen
    if chosen is None or step_tokens.asked is not None:
        wanted = "sequences" if step_tokens.asked is None else f"sequence {step_tokens.asked!r}"
        raise ConfigurationError(
            f"step {number_of} of {run!r} has no {wanted}; see the worst step: logprobe show {run} --tokens"
        )
    return {
        "run": run,
        "step": number_of,
        "pair": pair,
        "sequences": [{"sample_id": row["sample_id"], "share": row.get("share")} for row in step_tokens.sequences],
        "sample_id": chosen["sample_id"],
        "tokens": _tokens(reader, home, run, step_tokens, chosen),
    }


def _tokens(reader: Reader, home: Path, run: str, step: StepTokens, chosen: Mapping[str, Any]) -> list[dict[str, Any]]:
    tokens = read_tokens(reader, run, step.step, segment=chosen["segment_id"], row=chosen["row"])
    if tokens is None:
        raise ConfigurationError(
            f"the raw tokens of step {step.step} were deleted; choose a newer step, or raise `keep_gib` of the settings"
        )
    tokenizer = vocabulary(home, run)
    texts = {} if tokenizer is None else tokenizer.texts(set(tokens.token_id_N.tolist()))
    pair = pair_tokens(tokens, step.pair)
    behaviour, policy = (tokens.sides[name].values_N for name in SIDES[step.pair])
    return [
        {
            "position": at,
            "id": token,
            "text": texts.get(token),
            "state": STATES[pair.state_N[at]],
            "behaviour": float(behaviour[at]),
            "policy": float(policy[at]),
            "ratio": float(pair.ratio_N[at]),
            "k3": float(pair.k3_N[at]),
        }
        for at, token in enumerate(tokens.token_id_N.tolist())
    ]


def _show(document: Mapping[str, Any]) -> None:
    shares = [f"{row['sample_id']} ({row['share']:.0%})" for row in document["sequences"] if row["share"] is not None]
    sides = SIDES[document["pair"]]
    print(harmless(f"run       {document['run']}, step {document['step']}"))
    print(
        harmless(
            f"sequence  {document['sample_id']}; worst of the step, by share of K3: {', '.join(shares) or 'unknown'}"
        )
    )
    print(
        f"colour    blue: less likely in the {sides[1]} (ρ < 1); orange: more likely; red: broken; grey: not trained "
        "on\n"
    )
    painted(_pieces(document["tokens"]))
    worst = sorted(document["tokens"], key=rank)[:_WORST]
    head = ("position", "token", "state", sides[0], sides[1], "ρ", "K3")
    print("\n" + tables.fitted(head, [_cells(token) for token in worst]))


def rank(token: Mapping[str, Any]) -> tuple[bool, float]:
    """Return a sort key for tokens, with broken ones first and the others by descending K3."""
    k3 = token["k3"]
    return STATES.index(token["state"]) < FIRST_BROKEN, -k3 if k3 == k3 else 1.0  # noqa: PLR0124 - NaN comes last


def _cells(token: Mapping[str, Any]) -> list[Any]:
    values = [number(token[name]) for name in ("behaviour", "policy", "ratio", "k3")]
    return [token["position"], _text(token).strip("\n"), token["state"].replace("_", " "), *values]


def _pieces(tokens: list[dict[str, Any]]) -> Iterator[tuple[str, int | None]]:
    for token in tokens:
        yield _text(token), _colour(token)


def _text(token: Mapping[str, Any]) -> str:
    """Return the text of a token, or its id without a tokenizer. Bytes outside UTF-8 are escaped."""
    if token["text"] is None:
        return f"{token['id']} "
    return str(token["text"]).encode(errors="backslashreplace").decode()


def _colour(token: Mapping[str, Any]) -> int | None:
    state = STATES.index(token["state"])
    if state >= FIRST_BROKEN:
        return _BROKEN
    if state:
        return _MASKED
    off = token["ratio"] - 1
    return None if abs(off) < _NOTICEABLE else _BELOW if off < 0 else _ABOVE
