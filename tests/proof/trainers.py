"""Trainers that are wrong, on tiny models of four kinds: what a bisection of their recorded log-probs names, and what it must not.

    python tests/proof/trainers.py FOLDER [suite]

Prints counts and a line per situation that is judged wrongly; what was found is kept in the folder. Forward passes are real; there is no engine:
r is the model's own, in another attention kernel. `suite`: the few situations of the test suite.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Rows = Sequence[Mapping[str, Any]]
Scored = list[list[float]]
TEMPERATURE, SEQUENCES, TOKENS, VOCABULARY = 0.7, 12, 24, 256
PAD, BOS = 0, 1


@dataclass(frozen=True)
class Fault:
    """`words`: for people; `score`: the trainer's log-probs of rows; `knobs`: what a bisection has to name, nothing by default; `may`: may name too;
    `sides`: who may be said to depart."""

    words: str
    score: Callable[[Path, Rows], Scored]
    knobs: tuple[str, ...] = ()
    may: tuple[str, ...] = ()
    sides: tuple[str, ...] = ("trainer",)


# --- Models ---


def make(folder: Path, kind: str) -> Path:
    """A checkpoint of a kind; what it attends to matters more than in a model that has just been initialised."""
    import torch
    from transformers import AutoModelForCausalLM

    torch.manual_seed(3)
    model = AutoModelForCausalLM.from_config(_config(kind), dtype=torch.float32)
    with torch.no_grad():
        model.get_output_embeddings().weight.normal_(std=0.3)
    model.save_pretrained(folder)
    return folder


def _config(kind: str) -> Any:
    from transformers import LlamaConfig, MistralConfig, Qwen2Config, Qwen3MoeConfig

    shape = {
        "vocab_size": VOCABULARY,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 512,
        "initializer_range": 0.15,
        "pad_token_id": PAD,
        "bos_token_id": BOS,
        "eos_token_id": None,
    }
    scaled = {"rope_type": "linear", "factor": 4.0, "rope_theta": 10000.0}
    return {
        "llama": lambda: LlamaConfig(**shape, rope_parameters=scaled),
        "experts": lambda: Qwen3MoeConfig(
            **shape, head_dim=16, moe_intermediate_size=64, num_experts=8, num_experts_per_tok=2, norm_topk_prob=True
        ),
        "tied": lambda: Qwen2Config(**shape, tie_word_embeddings=True),
        "window": lambda: MistralConfig(**shape, sliding_window=48),
    }[kind]()


def sampled(folder: Path) -> list[dict[str, Any]]:
    """Prompts of many lengths, each with a response that the model sampled."""
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="sdpa")
    generator = torch.Generator().manual_seed(5)
    rows = []
    for index in range(SEQUENCES):
        length = int(torch.randint(6, 60, (1,), generator=generator))
        prompt = torch.randint(2, VOCABULARY, (1, length), generator=generator)
        out = model.generate(
            prompt, do_sample=True, temperature=TEMPERATURE, top_k=0, top_p=1.0, max_new_tokens=TOKENS - index % 5
        )
        rows.append(
            {
                "sample_id": f"s{index}",
                "prompt_ids": prompt[0].tolist(),
                "response_ids": out[0, length:].tolist(),
                "temperature": TEMPERATURE,
            }
        )
    return rows


# --- Trainers ---


def given(**settings: Any) -> Callable[[Path, Rows], Scored]:
    """The shipped trainer with a setting changed: a fault that has a knob."""

    def score(folder: Path, rows: Rows) -> Scored:
        from logprobe.monitor.proof.forward import score

        return score(rows, folder, **settings)

    return score


def changed(
    config: Callable[[Any], None] | None = None,
    weights: Callable[[Any], None] | None = None,
    ids: Callable[[list[int]], list[int]] | None = None,
    passes: Callable[[Any, list[int]], Any] | None = None,
    *,
    dropout: float = 0.0,
) -> Callable[[Path, Rows], Scored]:
    """A trainer whose configuration, weights, input or forward pass differ; `passes` gets model and ids, and returns logits."""

    def score(folder: Path, rows: Rows) -> Scored:
        import torch
        from transformers import AutoConfig, AutoModelForCausalLM

        settings = AutoConfig.from_pretrained(folder)
        if dropout:
            settings.attention_dropout = dropout
        if config is not None:
            config(settings)
        model = AutoModelForCausalLM.from_pretrained(
            folder, config=settings, dtype=torch.float32, attn_implementation="eager"
        )
        model.train(dropout > 0)
        torch.manual_seed(9)
        with torch.no_grad():
            if weights is not None:
                weights(model)
            return [_one(model, row, ids, passes) for row in rows]

    return score


def _one(model: Any, row: Mapping[str, Any], ids: Any, passes: Any) -> list[float]:
    import torch

    prompt, response = list(row["prompt_ids"]), list(row["response_ids"])
    whole = [*prompt, *response] if ids is None else ids([*prompt, *response])
    logits = model(torch.tensor([whole])).logits[0] if passes is None else passes(model, whole)
    scores = (logits[-len(response) - 1 : -1].float() / row["temperature"]).log_softmax(-1)
    return scores.gather(1, torch.tensor(response)[:, None])[:, 0].tolist()


def left_padded(folder: Path, rows: Rows) -> Scored:
    """A batch padded on the left to its longest row, without an attention mask."""
    longest = max(len(row["prompt_ids"]) + len(row["response_ids"]) for row in rows)
    return changed(ids=lambda ids: [PAD] * (longest - len(ids)) + ids)(folder, rows)


def without_adapter(folder: Path, rows: Rows) -> Scored:
    """The sampled weights have an adapter merged into them, which the trainer's lack: as much is taken away here."""
    return changed(weights=_low_rank)(folder, rows)


def _low_rank(model: Any) -> None:
    import torch

    for layer in model.model.layers:
        weight = layer.self_attn.q_proj.weight
        weight -= 0.1 * torch.randn(weight.shape[0], 2) @ torch.randn(2, weight.shape[1])


def seeing(sees: Callable[[Any, Any], Any]) -> Callable[[Any, list[int]], Any]:
    """Attention by another mask: `sees` says of places of tokens and of what they attend to, [T, 1] and [1, T], which count."""

    def passes(model: Any, ids: list[int]) -> Any:
        import torch

        at = torch.arange(len(ids))
        right = sees(at[:, None], at[None])
        mask = torch.zeros(right.shape).masked_fill(~right, -1e9)
        return model(torch.tensor([ids]), attention_mask=mask[None, None]).logits[0]

    return passes


def on_logits(change: Callable[[Any], Any]) -> Callable[[Any, list[int]], Any]:
    """Logits [T, V] that are changed once they are computed."""

    def passes(model: Any, ids: list[int]) -> Any:
        import torch

        return change(model(torch.tensor([ids])).logits[0])

    return passes


def rope(name: str, value: Any) -> Callable[[Any], None]:
    """Another rotary embedding."""

    def change(config: Any) -> None:
        config.rope_parameters = {**config.rope_parameters, name: value}

    return change


def unscaled(config: Any) -> None:
    """Rope scaling forgotten; in kinds without it, one that should not be there."""
    plain = config.rope_parameters.get("rope_type", "default") == "default"
    config.rope_parameters = (
        {**config.rope_parameters, "rope_type": "linear", "factor": 4.0}
        if plain
        else {"rope_type": "default", "rope_theta": config.rope_parameters["rope_theta"]}
    )


def _epsilon(config: Any) -> None:
    config.rms_norm_eps = 1e-2


def _perturbed(model: Any) -> None:
    import torch

    weight = model.model.layers[1].self_attn.o_proj.weight
    weight += 0.1 * weight.std() * torch.randn_like(weight)


def _older(model: Any) -> None:
    import torch

    for weight in model.parameters():
        weight.add_(0.02 * weight.std() * torch.randn_like(weight))


def _truncated(ids: list[int]) -> list[int]:
    return ids[-48:]


def _positions(offset: int, factor: int = 1) -> Callable[[Any, list[int]], Any]:
    def passes(model: Any, ids: list[int]) -> Any:
        import torch

        places = factor * torch.arange(len(ids))[None] + offset
        return model(torch.tensor([ids]), position_ids=places).logits[0]

    return passes


def rounded(folder: Path, rows: Rows) -> Scored:
    """Log-probs that were kept in bfloat16."""
    import torch

    return [torch.tensor(one).bfloat16().float().tolist() for one in given()(folder, rows)]


def some_wrong(folder: Path, rows: Rows) -> Scored:
    """A data-parallel rank of four has other weights."""
    right, wrong = given()(folder, rows), changed(weights=_older)(folder, rows)
    return [wrong[at] if at % 4 == 3 else right[at] for at in range(len(rows))]


def _bfloat16_weights(model: Any) -> None:
    """Weights that went through bfloat16 on their way to the trainer, which computes in float32."""
    for weight in model.parameters():
        weight.copy_(weight.bfloat16().float())


def _truncating(logits: Any) -> Any:
    """The trainer renormalises over the 32 likeliest tokens, the sampler did not."""
    import torch

    least = logits.topk(32, -1).values[:, -1:]
    return torch.where(logits < least, least - 5.0, logits)


def offset_by(value: float) -> Callable[[Path, Rows], Scored]:
    """A constant beside each log-prob, as a normaliser of another vocabulary makes it."""
    return lambda folder, rows: [[one + value for one in row] for row in given()(folder, rows)]


def on_some(wrong: Callable[[Path, Rows], Scored], every: int) -> Callable[[Path, Rows], Scored]:
    """One rank of several has the fault."""

    def score(folder: Path, rows: Rows) -> Scored:
        right, other = given()(folder, rows), wrong(folder, rows)
        return [other[at] if at % every == 0 else right[at] for at in range(len(rows))]

    return score


def _bfloat16_attention(model: Any) -> None:
    """What attention returns goes through bfloat16."""
    for layer in model.model.layers:
        layer.self_attn.o_proj.register_forward_pre_hook(lambda _, args: (args[0].bfloat16().float(),))


def _unlikely_floor(folder: Path, rows: Rows) -> Scored:
    """Log-probs are clamped at -4."""
    return [[max(one, -4.0) for one in row] for row in given()(folder, rows)]


def _scaled(folder: Path, rows: Rows) -> Scored:
    """Log-probs divided by the temperature after the softmax instead of logits before it."""
    return [[one / TEMPERATURE for one in row] for row in given(temperature=1.0)(folder, rows)]


def _late(wrong: Callable[[Path, Rows], Scored]) -> Callable[[Path, Rows], Scored]:
    """The second half of each response alone has the fault."""

    def score(folder: Path, rows: Rows) -> Scored:
        right, other = given()(folder, rows), wrong(folder, rows)
        return [[*a[: len(a) // 2], *b[len(a) // 2 :]] for a, b in zip(right, other, strict=True)]

    return score


def _mixed(folder: Path, rows: Rows) -> Scored:
    """Half of a mean over two trainers, one in bfloat16: an average of log-probs."""
    right, other = given()(folder, rows), given(dtype="bfloat16")(folder, rows)
    return [[(x + y) / 2 for x, y in zip(a, b, strict=True)] for a, b in zip(right, other, strict=True)]


FAULTS: dict[str, Fault] = {
    # Outside the list of knobs.
    "padding": Fault("left padding without a mask", left_padded),
    "bos": Fault("a BOS that was not sampled from", changed(ids=lambda ids: [BOS, *ids])),
    "unscaled": Fault("rope scaling forgotten", changed(unscaled)),
    "theta": Fault("another rope_theta", changed(rope("rope_theta", 500.0))),
    "dropout": Fault("dropout", changed(dropout=0.1)),
    "context": Fault("a window of 40 tokens", changed(passes=seeing(lambda at, to: (to <= at) & (at - to < 40)))),
    "adapter": Fault("an adapter missing", without_adapter),
    "epsilon": Fault("a norm's epsilon", changed(_epsilon)),
    "layer": Fault("one layer's weights", changed(weights=_perturbed)),
    "truncated": Fault("truncated context", changed(ids=_truncated)),
    "doubled": Fault("positions doubled", changed(passes=_positions(0, 2))),
    "rounded": Fault("log-probs kept in bfloat16", rounded),
    "rank": Fault("one rank of four with other weights", some_wrong),
    "other_temperature": Fault("a temperature of 0.9", given(temperature=0.9)),
    "bf16_weights": Fault("weights that went through bfloat16", changed(weights=_bfloat16_weights)),
    "bf16_logits": Fault(
        "logits stored in bfloat16", changed(passes=on_logits(lambda logits: logits.bfloat16().float()))
    ),
    "ahead": Fault("a causal mask off by one", changed(passes=seeing(lambda at, to: to <= at + 1))),
    "truncating": Fault("the trainer truncates, the sampler does not", changed(passes=on_logits(_truncating))),
    "constant": Fault("0.02 added to each log-prob", offset_by(0.02)),
    "shift_two": Fault("logits shifted by two", given(shift=2)),
    "twice": Fault("divided by the temperature twice", given(temperature=TEMPERATURE**2)),
    "bf16_attention": Fault("attention in bfloat16", changed(weights=_bfloat16_attention)),
    "blocks": Fault(
        "attention within blocks of 32", changed(passes=seeing(lambda at, to: (to <= at) & (at // 32 == to // 32)))
    ),
    "first_masked": Fault(
        "the first token taken for padding", changed(passes=seeing(lambda at, to: (to <= at) & ((to > 0) | (at == 0))))
    ),
    "floor": Fault("log-probs clamped at -4", _unlikely_floor),
    "scaled": Fault("log-probs divided by the temperature, not logits", _scaled),
    "late_temperature": Fault("no temperature in the second half of responses", _late(given(temperature=1.0))),
    "some_mask": Fault("mask shifted on one rank of six", on_some(given(mask_shift=1), 6)),
    "mixed": Fault("a mean of a trainer in bfloat16 and one in float32", _mixed),
    # With a knob, or without an effect: right is to name it, or to find nothing.
    "healthy": Fault("nothing", given(), sides=("unknown",)),
    "bf16": Fault("bfloat16", given(dtype="bfloat16"), ("trainer.dtype",)),
    "fp16": Fault("float16", given(dtype="float16"), ("trainer.dtype",)),
    "head": Fault("head in bfloat16", given(head_dtype="bfloat16"), ("trainer.head_dtype",)),
    "temperature": Fault("temperature forgotten", given(temperature=1.0), ("trainer.temperature",)),
    "shift": Fault("logits shifted by one", given(shift=1), ("trainer.shift",)),
    "mask": Fault("mask shifted by one", given(mask_shift=1), ("trainer.mask_shift",)),
    "packing": Fault("packed without boundaries", given(packing=True), ("trainer.packing",)),
    "two": Fault(
        "bfloat16 without the temperature",
        given(dtype="bfloat16", temperature=1.0),
        ("trainer.temperature", "trainer.dtype"),
    ),
    "offset": Fault(
        "positions from 1, which rotary embeddings do not see", changed(passes=_positions(1)), sides=("unknown",)
    ),
    "labels": Fault("labels shifted by one", given(mask_shift=-1), ("trainer.mask_shift",)),
    "logits": Fault("logits read one position early", given(shift=-1), ("trainer.shift",)),
    "some_bf16": Fault("bfloat16 on one rank of two", on_some(given(dtype="bfloat16"), 2), may=("trainer.dtype",)),
    "head_temperature": Fault(
        "head in bfloat16 without the temperature",
        given(head_dtype="bfloat16", temperature=1.0),
        ("trainer.temperature", "trainer.head_dtype"),
    ),
    "packed_temperature": Fault(
        "packed without the temperature",
        given(packing=True, temperature=1.0),
        ("trainer.packing", "trainer.temperature"),
    ),
    "shift_bf16": Fault("shifted, in bfloat16", given(shift=1, dtype="bfloat16"), ("trainer.shift", "trainer.dtype")),
    "labels_fp16": Fault(
        "mask shifted, in float16", given(mask_shift=1, dtype="float16"), ("trainer.mask_shift", "trainer.dtype")
    ),
    "sdpa_bf16": Fault(
        "bfloat16, other kernels",
        given(dtype="bfloat16", attn_implementation="sdpa"),
        may=("trainer.dtype", "trainer.attn_implementation"),
    ),
    "head_fp16": Fault("head in float16, below the floor", given(head_dtype="float16"), sides=("unknown",)),
    "mask_temperature": Fault(
        "mask shifted, without the temperature",
        given(mask_shift=1, temperature=1.0),
        ("trainer.mask_shift", "trainer.temperature"),
    ),
    "head_shift": Fault(
        "head in bfloat16, logits one early",
        given(head_dtype="bfloat16", shift=-1),
        ("trainer.shift", "trainer.head_dtype"),
    ),
    "packed_bf16": Fault(
        "packed, in bfloat16", given(packing=True, dtype="bfloat16"), ("trainer.packing", "trainer.dtype")
    ),
    "three": Fault(
        "mask shifted, packed, in float16",
        given(mask_shift=-1, packing=True, dtype="float16"),
        ("trainer.mask_shift", "trainer.packing", "trainer.dtype"),
    ),
    "sdpa": Fault("other attention kernels, in float32", given(attn_implementation="sdpa"), sides=("unknown",)),
}

KINDS = ("llama", "experts", "tied", "window")
SUITE: Mapping[str, tuple[str, ...]] = {  # what the test suite has bisected
    "llama": ("healthy", "bf16", "temperature", "unscaled", "context", "dropout"),
    "experts": ("fp16", "shift", "packing", "adapter"),
    "tied": ("mask", "two", "theta"),
    "window": ("healthy", "head", "bos", "padding"),
}


def judged(document: Mapping[str, Any]) -> str:
    """What is wrong with an answer; empty: nothing."""
    named, departs = {*document["smallest_set"]}, {*document["departs_all"]} or {document["departs"]}
    if named - {*document["expected"], *document["may"]}:
        return f"WRONG SETTING {', '.join(sorted(named - {*document['expected'], *document['may']}))}"
    if not departs <= {*document["sides"]}:
        return f"wrong side {', '.join(sorted(departs))}"
    return "" if named >= {*document["expected"]} else f"not named: {', '.join({*document['expected']} - named)}"


def judge(folder: Path, kind: str, faults: Mapping[str, Fault]) -> dict[str, Any]:
    """What `logprobe bisect` says of each fault on a model of one kind."""
    import numpy as np

    from logprobe.monitor.proof.experiments.experiment import bisect
    from logprobe.monitor.proof.sample import TokenSequence
    from logprobe.monitor.proof.scorers import forward_process
    from logprobe.monitor.proof.scorers.running import ENGINE, Outcome
    from logprobe.monitor.proof.setup import Setup

    model = make(folder / kind, kind)
    rows = sampled(model)
    engine = given(attn_implementation="sdpa")(model, rows)
    kept: dict[str, Outcome] = {}

    def run(module: str, job: Mapping[str, Any], **_: object) -> Outcome:
        if module == ENGINE:
            return Outcome(None, "no engine here", 0.0, answered=True)
        key = json.dumps(job, sort_keys=True)
        if key not in kept:
            kept[key] = Outcome(forward_process.main(job, folder), None, 0.0, answered=True)
        return kept[key]

    found = {}
    for name, fault in faults.items():
        trainer = fault.score(model, rows)
        sequences = [
            TokenSequence(
                row["sample_id"],
                tuple(row["prompt_ids"]),
                tuple(row["response_ids"]),
                np.array(r),
                np.array(t),
                temperature=TEMPERATURE,
            )
            for row, r, t in zip(rows, engine, trainer, strict=True)
        ]
        document = bisect(sequences, Setup({"": model}), run=run).document()
        expected = {"expected": list(fault.knobs), "may": list(fault.may), "sides": list(fault.sides)}
        found[name] = {**document, **expected, "words": fault.words}
    return found


def shifts(model: Path) -> list[list[float]]:
    """Log-probs of one row by the shipped trainer: as they are, of a mask one late and one early, of logits one late."""
    rows = sampled(model)[:1]
    settings: tuple[dict[str, Any], ...] = ({}, {"mask_shift": 1}, {"mask_shift": -1}, {"shift": 1})
    return [given(**one)(model, rows)[0] for one in settings]


def main(folder: Path, *, suite: bool = False) -> int:
    import page
    import torch

    torch.set_num_threads(1)  # tiny products: threads only wait for each other
    names = SUITE if suite else dict.fromkeys(KINDS, tuple(FAULTS))
    found = {kind: judge(folder, kind, {name: FAULTS[name] for name in names[kind]}) for kind in KINDS}
    (folder / "trainers.json").write_text(
        json.dumps({"ran": page.ran(), "found": found, "shifts": shifts(folder / KINDS[0])})
    )
    of = {f"{kind} {name}": document for kind, documents in found.items() for name, document in documents.items()}
    wrong = {name: words for name, document in of.items() if (words := judged(document))}
    settings = [document for document in of.values() if document["expected"]]
    print(f"{len(of)} situations, {len(settings)} with a setting to name; {len(wrong)} judged wrongly")
    print("".join(f"MISS {name}: {words}\n" for name, words in wrong.items()), end="")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), suite=sys.argv[2:] == ["suite"]))
