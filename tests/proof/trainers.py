"""Trainers that are wrong, on tiny models of four kinds: what a bisection of their recorded log-probs names, and what it must not.

    python tests/proof/trainers.py FOLDER developed|held_out|further|unseen

Prints counts and a line per situation that is judged wrongly; what was found is kept in the folder. Forward passes are real; there is no engine:
r is the model's own, in another attention kernel. `DEVELOPED` are the faults that the rules were written against; `HELD_OUT` were written
before and first run after. `FURTHER` and those of unseen.py came later, likewise written before any of them was run.
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


def within(window: int) -> Callable[[Any, list[int]], Any]:
    """Each token attends to itself and the `window` − 1 tokens before it."""

    def passes(model: Any, ids: list[int]) -> Any:
        import torch

        back = torch.arange(len(ids))[:, None] - torch.arange(len(ids))[None]
        mask = torch.zeros(back.shape).masked_fill((back < 0) | (back >= window), -1e9)
        return model(torch.tensor([ids]), attention_mask=mask[None, None]).logits[0]

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


DEVELOPED: dict[str, Fault] = {
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
    "padding": Fault("left padding without a mask", left_padded),
    "bos": Fault("a BOS that was not sampled from", changed(ids=lambda ids: [BOS, *ids])),
    "unscaled": Fault("rope scaling forgotten", changed(unscaled)),
    "theta": Fault("another rope_theta", changed(rope("rope_theta", 500.0))),
    "dropout": Fault("dropout", changed(dropout=0.1)),
    "context": Fault("a window of 40 tokens", changed(passes=within(40))),
    "adapter": Fault("an adapter missing", without_adapter),
}
KINDS = ("llama", "experts", "tied", "window")


# --- Held out: written before the rules were changed, not run until they were ---


def _epsilon(config: Any) -> None:
    config.rms_norm_eps = 1e-2


def _perturbed(model: Any) -> None:
    import torch

    weight = model.model.layers[1].self_attn.o_proj.weight
    weight += 0.1 * weight.std() * torch.randn_like(weight)


def _halves(model: Any) -> None:
    """Rotary halves interleaved instead of split: rows of q and k in another order than the checkpoint's."""
    import torch

    for layer in model.model.layers:
        for projection in (layer.self_attn.q_proj, layer.self_attn.k_proj):
            size = model.config.head_dim if getattr(model.config, "head_dim", None) else 16
            order = torch.arange(size).reshape(2, -1).T.reshape(-1)
            weight = projection.weight
            weight.copy_(weight.reshape(-1, size, weight.shape[1])[:, order].reshape(weight.shape))


def _retied(model: Any) -> None:
    """The head is the embedding's, or no longer: the wrong one of both."""
    import torch

    head, embedding = model.get_output_embeddings(), model.get_input_embeddings()
    if head.weight is embedding.weight or torch.equal(head.weight, embedding.weight):
        head.weight = torch.nn.Parameter(head.weight + 0.05 * torch.randn_like(head.weight))
    else:
        head.weight = torch.nn.Parameter(embedding.weight.clone())


def _attention_scale(model: Any) -> None:
    for layer in model.model.layers:
        layer.self_attn.scaling *= 0.8


def _skipped(model: Any) -> None:
    model.model.layers[1].forward = lambda hidden_states, *_, **__: hidden_states


def _fewer_bits(model: Any) -> None:
    """Weights rounded to 8 bits per row."""
    for name, weight in model.named_parameters():
        if weight.ndim == 2 and "embed" not in name and "lm_head" not in name:
            scale = weight.abs().amax(1, keepdim=True) / 127
            weight.copy_((weight / scale).round() * scale)


def _older(model: Any) -> None:
    import torch

    for weight in model.parameters():
        weight.add_(0.02 * weight.std() * torch.randn_like(weight))


def _retokenised(ids: list[int]) -> list[int]:
    return [one + 1 if one % 17 == 3 else one for one in ids]


def _truncated(ids: list[int]) -> list[int]:
    return ids[-48:]


def _bidirectional(model: Any, ids: list[int]) -> Any:
    """A prompt that sees itself whole: attention without the causal mask."""
    import torch

    mask = torch.zeros(1, 1, len(ids), len(ids))
    return model(torch.tensor([ids]), attention_mask=mask).logits[0]


def _positions(offset: int, factor: int = 1) -> Callable[[Any, list[int]], Any]:
    def passes(model: Any, ids: list[int]) -> Any:
        import torch

        places = factor * torch.arange(len(ids))[None] + offset
        return model(torch.tensor([ids]), position_ids=places).logits[0]

    return passes


def _of_response(model: Any, ids: list[int]) -> Any:
    """The trainer's template drops the first three tokens of the prompt."""
    import torch

    return model(torch.tensor([ids[3:]])).logits[0]


def rounded(folder: Path, rows: Rows) -> Scored:
    """Log-probs that were kept in bfloat16."""
    import torch

    return [torch.tensor(one).bfloat16().float().tolist() for one in given()(folder, rows)]


def averaged(folder: Path, rows: Rows) -> Scored:
    """The sequence's mean in the place of each token's value."""
    return [[sum(one) / len(one)] * len(one) for one in given()(folder, rows)]


def some_wrong(folder: Path, rows: Rows) -> Scored:
    """A data-parallel rank of four has other weights."""
    right, wrong = given()(folder, rows), changed(weights=_older)(folder, rows)
    return [wrong[at] if at % 4 == 3 else right[at] for at in range(len(rows))]


def temperature_of(value: float) -> Callable[[Path, Rows], Scored]:
    return given(temperature=value)


def exchanged(folder: Path, rows: Rows) -> Scored:
    """Answers of a batch in another order than its questions."""
    right = given()(folder, rows)
    found = []
    for at, one in enumerate(right):
        other = right[(at + 1) % len(right)]
        found.append((other * 2)[: len(one)])
    return found


HELD_OUT: dict[str, Fault] = {
    "epsilon": Fault("a norm's epsilon", changed(_epsilon)),
    "layer": Fault("one layer's weights", changed(weights=_perturbed)),
    "halves": Fault("rotary halves interleaved", changed(weights=_halves)),
    "tie": Fault("embeddings tied, or not, by mistake", changed(weights=_retied)),
    "attention": Fault("another attention scale", changed(weights=_attention_scale)),
    "skipped": Fault("a layer left out", changed(weights=_skipped)),
    "eight_bits": Fault("weights in 8 bits", changed(weights=_fewer_bits)),
    "older": Fault("older weights", changed(weights=_older)),
    "retokenised": Fault("tokenised again", changed(ids=_retokenised)),
    "truncated": Fault("truncated context", changed(ids=_truncated)),
    "bidirectional": Fault("no causal mask", changed(passes=_bidirectional)),
    "doubled": Fault("positions doubled", changed(passes=_positions(0, 2))),
    "template": Fault("the prompt's first three tokens dropped", changed(passes=_of_response)),
    "rounded": Fault("log-probs kept in bfloat16", rounded),
    "averaged": Fault("a mean in each token's place", averaged),
    "rank": Fault("one rank of four with other weights", some_wrong),
    "exchanged": Fault("sequences exchanged", exchanged),
    "other_temperature": Fault("a temperature of 0.9", temperature_of(0.9)),
    "little_dropout": Fault("a little dropout", changed(dropout=0.01)),
    # With a knob, or without an effect: right is to name it, or to find nothing.
    "offset": Fault(
        "positions from 1, which rotary embeddings do not see", changed(passes=_positions(1)), sides=("unknown",)
    ),
    "labels": Fault("labels shifted by one", given(mask_shift=-1), ("trainer.mask_shift",)),
    "logits": Fault("logits read one position early", given(shift=-1), ("trainer.shift",)),
    "both": Fault("float16, packed", given(dtype="float16", packing=True), ("trainer.packing", "trainer.dtype")),
}


# --- Further: written on 2026-11-25, before one of them was run ---


def _bfloat16_weights(model: Any) -> None:
    """Weights that went through bfloat16 on their way to the trainer, which computes in float32."""
    for weight in model.parameters():
        weight.copy_(weight.bfloat16().float())


def _embedding_scale(model: Any) -> None:
    embedding = model.get_input_embeddings()
    embedding.register_forward_hook(lambda *args: args[-1] * 1.02)


def _norms_plus_one(model: Any) -> None:
    """The last norm's weight is read as an offset from one."""
    model.model.norm.weight.add_(0.1)


def _eight_bit_keys(model: Any) -> None:
    """Keys and values in 8 bits, as a cache would keep them."""

    def rounded_to_8(_: Any, __: Any, output: Any) -> Any:
        scale = output.abs().amax(-1, keepdim=True) / 127
        return (output / scale).round() * scale

    for layer in model.model.layers:
        layer.self_attn.k_proj.register_forward_hook(rounded_to_8)
        layer.self_attn.v_proj.register_forward_hook(rounded_to_8)


def _one_ahead(model: Any, ids: list[int]) -> Any:
    """A causal mask that is off by one: each token sees the next."""
    import torch

    ahead = torch.arange(len(ids))[None] - torch.arange(len(ids))[:, None]
    mask = torch.zeros(ahead.shape).masked_fill(ahead > 1, -1e9)
    return model(torch.tensor([ids]), attention_mask=mask[None, None]).logits[0]


def _bfloat16_logits(model: Any, ids: list[int]) -> Any:
    """Logits that were stored in bfloat16; the head computed in float32."""
    import torch

    return model(torch.tensor([ids])).logits[0].bfloat16().float()


def _capped(model: Any, ids: list[int]) -> Any:
    """Logits capped softly, as some architectures do and this one does not."""
    import torch

    logits = model(torch.tensor([ids])).logits[0]
    return 20.0 * torch.tanh(logits / 20.0)


def _separated(folder: Path, rows: Rows) -> Scored:
    """A template that puts a token between prompt and response."""
    at = {(*row["prompt_ids"], *row["response_ids"]): len(row["prompt_ids"]) for row in rows}
    return changed(ids=lambda ids: [*ids[: at[tuple(ids)]], BOS, *ids[at[tuple(ids)] :]])(folder, rows)


def _truncating(model: Any, ids: list[int]) -> Any:
    """The trainer renormalises over the 32 likeliest tokens, the sampler did not."""
    import torch

    logits = model(torch.tensor([ids])).logits[0]
    least = logits.topk(32, -1).values[:, -1:]
    return torch.where(logits < least, least - 5.0, logits)


def _routed(config: Any) -> None:
    """One expert a token instead of two; where there are none, another activation."""
    if hasattr(config, "num_experts_per_tok"):
        config.num_experts_per_tok = 1
    else:
        config.hidden_act = "gelu"


def offset_by(value: float) -> Callable[[Path, Rows], Scored]:
    """A constant beside each log-prob, as a normaliser of another vocabulary makes it."""
    return lambda folder, rows: [[one + value for one in row] for row in given()(folder, rows)]


def on_some(wrong: Callable[[Path, Rows], Scored], every: int) -> Callable[[Path, Rows], Scored]:
    """One rank of several has the fault."""

    def score(folder: Path, rows: Rows) -> Scored:
        right, other = given()(folder, rows), wrong(folder, rows)
        return [other[at] if at % every == 0 else right[at] for at in range(len(rows))]

    return score


FURTHER: dict[str, Fault] = {
    # Outside the list of knobs, most of them beside one of it.
    "bf16_weights": Fault("weights that went through bfloat16", changed(weights=_bfloat16_weights)),
    "bf16_logits": Fault("logits stored in bfloat16", changed(passes=_bfloat16_logits)),
    "embedding": Fault("embeddings scaled by 1.02", changed(weights=_embedding_scale)),
    "last_norm": Fault("the last norm's weight 0.1 too large", changed(weights=_norms_plus_one)),
    "keys": Fault("keys and values in 8 bits", changed(weights=_eight_bit_keys)),
    "ahead": Fault("a causal mask off by one", changed(passes=_one_ahead)),
    "capped": Fault("logits capped softly", changed(passes=_capped)),
    "separated": Fault("a token between prompt and response", _separated),
    "truncating": Fault("the trainer truncates, the sampler does not", changed(passes=_truncating)),
    "routed": Fault("one expert instead of two, or another activation", changed(_routed)),
    "constant": Fault("0.02 added to each log-prob", offset_by(0.02)),
    "shift_two": Fault("logits shifted by two", given(shift=2)),
    "some_shifted": Fault("logits shifted by one on one rank of four", on_some(given(shift=1), 4)),
    "some_bf16": Fault("bfloat16 on one rank of two", on_some(given(dtype="bfloat16"), 2), may=("trainer.dtype",)),
    "twice": Fault("divided by the temperature twice", given(temperature=TEMPERATURE**2)),
    # With a knob.
    "fp16_temperature": Fault(
        "float16 without the temperature",
        given(dtype="float16", temperature=1.0),
        ("trainer.temperature", "trainer.dtype"),
    ),
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


def main(folder: Path, which: str) -> int:
    import page
    import torch

    torch.set_num_threads(1)  # tiny products: threads only wait for each other
    faults = {"developed": DEVELOPED, "held_out": HELD_OUT, "further": FURTHER}.get(which)
    if faults is None:
        import unseen

        faults = unseen.TRAINERS
    found = {kind: judge(folder, kind, faults) for kind in KINDS}
    (folder / f"trainers-{which}.json").write_text(json.dumps({"ran": page.ran(), "found": found}))
    of = {f"{kind} {name}": document for kind, documents in found.items() for name, document in documents.items()}
    wrong = {name: words for name, document in of.items() if (words := judged(document))}
    settings = [document for document in of.values() if document["expected"]]
    print(f"{len(of)} situations, {len(settings)} with a setting to name; {len(wrong)} judged wrongly")
    print("".join(f"MISS {name}: {words}\n" for name, words in wrong.items()), end="")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2]))
