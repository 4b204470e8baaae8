"""Files made by the frameworks' own writers, read as samples of `logprobe score`: ``python foreign_writers.py REPOSITORIES``.

`REPOSITORIES` has a clone of each framework under its own name (trl, prime-rl, RL, slime, verl, open-instruct, ms-swift, SkyRL, PipelineRL).
None of them installs beside the tests, so the functions and classes that write are taken out of the clone and run as they are; what they
import of the rest of the framework is given to them. vLLM's responses are made by the vLLM that is installed. Exit code 1: one was not read.
"""

from __future__ import annotations
import __future__ as future

import ast
import json
import pickle
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import torch

from logprobe.collectors.errors import ConfigurationError
from logprobe.monitor.proof.sample import read_sample

ROWS = (
    {"prompt": [5, 6, 7], "response": [8, 9], "r": [-0.5, -1.5], "t": [-0.25, -1.25]},
    {"prompt": [5, 6], "response": [8, 9, 10, 11], "r": [-0.5, -2.0, -0.125, -3.0], "t": [-0.5, -2.5, -0.25, -2.75]},
)
WIDTH = 8
Names = dict[str, Any]


def taken(path: Path, *names: str, given: Names) -> Names:
    """The functions, classes and assignments of these names, of the top level or as ``Class.method``, run with what is `given`."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    body = [node for name in names for node in _defined(tree, name)]
    for node in body:
        for function in ast.walk(node):
            if isinstance(function, ast.FunctionDef) and not isinstance(node, ast.ClassDef):
                function.decorator_list = []
    space = {"__name__": "taken", **given}
    code = compile(ast.Module(body, []), str(path), "exec", flags=future.annotations.compiler_flag, dont_inherit=True)
    sys.modules.setdefault("taken", ModuleType("taken"))  # where dataclasses look
    exec(code, space)
    return space


def _defined(tree: ast.AST, name: str) -> Iterator[Any]:
    owner, _, method = name.rpartition(".")
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef) and owner and node.name == owner:
            yield from (part for part in node.body if isinstance(part, ast.FunctionDef) and part.name == method)
        named = isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name == name
        assigned = isinstance(node, ast.Assign) and any(
            isinstance(to, ast.Name) and to.id == name for to in node.targets
        )
        if not owner and (named or assigned):
            yield node


def padded(values: list[Any], fill: Any = 0, *, left: bool = False, width: int = WIDTH) -> list[Any]:
    rest = [fill] * (width - len(values))
    return [*rest, *values] if left else [*values, *rest]


def whole(row: Names, name: str, fill: Any = 0.0) -> list[Any]:
    """Values of response tokens in a row over prompt and response."""
    return [fill] * len(row["prompt"]) + row[name]


def tokens(row: Names) -> list[int]:
    return [*row["prompt"], *row["response"]]


def mask(row: Names) -> list[int]:
    return [0] * len(row["prompt"]) + [1] * len(row["response"])


# --- One function per format: writes a file and returns its path ---


def prime_rl(source: Path, folder: Path) -> Path:
    root = source / "prime-rl/src/prime_rl/trainer/rl"
    ratio = taken(root / "loss.py", "compute_importance_ratio_and_mismatch_kl", given={"torch": torch})
    file = root / "token_export.py"
    names = [node.name for node in ast.parse(file.read_text()).body if isinstance(node, ast.ClassDef | ast.FunctionDef)]
    import atexit
    import math

    given = {
        **ratio,
        "atexit": atexit,
        "json": json,
        "math": math,
        "Path": Path,
        "DefaultLossConfig": type("DefaultLossConfig", (), {}),
    }
    exporter = taken(file, "SCHEMA_VERSION", *names, given=given)["TokenExporter"](folder, 0)
    every: Callable[[Callable[[Names], list[Any]]], torch.Tensor] = lambda of: torch.tensor(
        [[x for row in ROWS for x in of(row)]]
    )
    batch = {
        "input_ids": every(tokens),
        "position_ids": every(lambda row: [*range(len(tokens(row)))]),
        "loss_mask": every(mask).bool(),
    }
    batch |= {
        "advantages": every(lambda row: [0.5] * len(tokens(row))),
        "inference_logprobs": every(lambda row: whole(row, "r")),
    }
    batch |= {"env_names": ["math"] * sum(len(tokens(row)) for row in ROWS)}
    output = {"logprobs": every(lambda row: whole(row, "t")), "entropy": every(lambda row: [0.1] * len(tokens(row)))}
    exporter.export(3, 0, batch, output, [len(tokens(row)) for row in ROWS], None)
    exporter.mark_stable()
    return folder / "token_exports/step_3/rank_0.jsonl"


def nemo_rl(source: Path, folder: Path) -> Path:
    import os
    from collections import UserDict
    from typing import Generic, TypeVar

    given = {
        "UserDict": UserDict,
        "Generic": Generic,
        "DictT": TypeVar("DictT"),
        "torch": torch,
        "json": json,
        "os": os,
        "np": np,
    }
    given |= {"PackedTensor": type("PackedTensor", (), {}), "Any": Any, "Mapping": dict}
    batched = taken(
        source / "RL/nemo_rl/distributed/batched_data_dict.py", "BatchedDataDict", "SlicedDataDict", given=given
    )
    write = taken(source / "RL/nemo_rl/utils/logger.py", "Logger.log_batched_dict_as_jsonl", given=batched)[
        "log_batched_dict_as_jsonl"
    ]
    columns = {
        "content": ["text"] * len(ROWS), "rewards": [1.0] * len(ROWS), "input_lengths": [len(tokens(row)) for row in ROWS],
        "token_ids": [padded(tokens(row)) for row in ROWS], "token_loss_mask": [padded(mask(row)) for row in ROWS],
        "sample_loss_mask": [1.0] * len(ROWS), "advantages": [[0.5] * WIDTH for _ in ROWS],
        "generation_logprobs": [padded(whole(row, "r"), 0.0) for row in ROWS],
        "prev_logprobs": [padded(whole(row, "t"), 0.0) for row in ROWS],
    }  # fmt: skip
    write(SimpleNamespace(base_log_dir=str(folder)), columns, "train_data_step3.jsonl")
    return folder / "train_data_step3.jsonl"


def open_instruct(source: Path, folder: Path) -> Path:
    import os
    from dataclasses import asdict, dataclass, field

    root = source / "open-instruct/open_instruct"
    common = {
        "dataclass": dataclass,
        "field": field,
        "asdict": asdict,
        "json": json,
        "os": os,
        "np": np,
        "torch": torch,
    }
    types = taken(root / "data_types.py", "RequestInfo", "GenerationResult", given=common)
    batch = taken(root / "model_utils.py", "Batch", given=common)["Batch"]
    names = ("RolloutRecord", "_get_request_info_for_sample", "_save_rollouts")
    space = taken(root / "rl_utils.py", *names, given={**common, "logger": MagicMock()})
    count = len(ROWS)
    info = types["RequestInfo"]([0] * count, [0] * count, [""] * count, [""] * count, [0.0] * count, [False] * count)
    result = types["GenerationResult"](
        [row["response"] for row in ROWS], ["stop"] * count, [[1] * len(row["response"]) for row in ROWS], info, 0, "p",
        logprobs=[row["r"] for row in ROWS],
    )  # fmt: skip
    queries = batch([row["prompt"] for row in ROWS], [[1]] * count, ["gsm8k"] * count, None, None, None, [1.0] * count)
    space["_save_rollouts"](str(folder), "run", 3, queries, result, np.zeros(count), 1, 0)
    return folder / "run_rollouts_000000.jsonl"


def _slime_samples(source: Path) -> list[Any]:
    from dataclasses import dataclass, field
    from enum import Enum

    given = {"dataclass": dataclass, "field": field, "Enum": Enum, "Any": Any, "torch": torch}
    sample = taken(
        source / "slime/slime/utils/types.py", "_to_int_list", "_to_float_list", "_numel", "Sample", given=given
    )["Sample"]
    return [
        sample(
            index=index,
            tokens=tokens(row),
            response_length=len(row["response"]),
            rollout_log_probs=row["r"],
            weight_versions=["4"],
            reward=1.0,
        )
        for index, row in enumerate(ROWS)
    ]


def slime_rollout(source: Path, folder: Path) -> Path:
    given = {"Path": Path, "torch": torch, "logger": MagicMock()}
    file = source / "slime/slime/observability/rollout_data_utils.py"
    save = taken(file, "save_debug_rollout_data", given=given)["save_debug_rollout_data"]
    save(str(folder / "rollout_{rollout_id}.pt"), _slime_samples(source), rollout_id=3, evaluation=False)
    return folder / "rollout_3.pt"


def slime_training(source: Path, folder: Path) -> Path:
    file = source / "slime/slime/observability/train_data_utils.py"
    names = ("_LAYOUT_FIELDS", "_WHOLE_BATCH_FIELDS", "_is_per_sample", "_build_dump_payload")
    build = taken(file, *names, given={"torch": torch, "logger": MagicMock()})["_build_dump_payload"]
    data = {
        "tokens": [torch.tensor(tokens(row)) for row in ROWS], "response_lengths": [len(row["response"]) for row in ROWS],
        "total_lengths": [len(tokens(row)) for row in ROWS], "loss_masks": [torch.ones(len(row["response"])) for row in ROWS],
        "rollout_log_probs": [torch.tensor(row["r"]) for row in ROWS], "log_probs": [torch.tensor(row["t"]) for row in ROWS],
        "sample_indices": [0, 1], "partition": [0, 1], "raw_reward": [1.0, 0.0],
    }  # fmt: skip
    shard = {"rank": 0, "data_parallel_rank": 0, "rollout_data": data}
    torch.save(build([shard], rollout_id=3, writer_rank=0), folder / "train_3_0.pt")
    return folder / "train_3_0.pt"


def skyrl(source: Path, folder: Path) -> Path:
    """A pickle of its own class, which is not there when it is read."""
    from typing import Generic, TypedDict, TypeVar

    module = ModuleType("skyrl.backends.skyrl_train.training_batch")
    given = {
        "Generic": Generic,
        "TypedDict": TypedDict,
        "DictType": TypeVar("DictType"),
        "torch": torch,
        "np": np,
        "pickle": pickle,
    }
    import io

    given |= {"io": io, "Any": Any, "copy": MagicMock(), "List": list, "Dict": dict, "Optional": MagicMock()}
    file = source / "SkyRL/skyrl/backends/skyrl_train/training_batch.py"
    names = (
        "_serialize_tensor",
        "_deserialize_tensor",
        "TensorList",
        "_rebuild_tensor_batch",
        "TensorBatch",
        "TrainingInput",
        "TrainingInputBatch",
    )
    space = taken(file, *names, given=given)
    vars(module).update({part: space[part] for part in names})
    for part in names:
        space[part].__module__, space[part].__qualname__ = module.__name__, part
    for depth in range(1, 4):
        sys.modules[".".join(module.__name__.split(".")[:depth])] = ModuleType("package")
    sys.modules[module.__name__] = module
    response = max(len(row["response"]) for row in ROWS)
    batch = space["TrainingInputBatch"]({
        "sequences": torch.tensor([padded(tokens(row), left=True) for row in ROWS]),
        "attention_mask": torch.tensor([padded([1] * len(tokens(row)), left=True) for row in ROWS]),
        "response_mask": torch.tensor([padded([1] * len(row["response"]), left=True, width=response) for row in ROWS]),
        "loss_mask": torch.tensor([padded([1.0] * len(row["response"]), 0.0, left=True, width=response) for row in ROWS]),
        "rollout_logprobs": torch.tensor([padded(row["r"], 0.0, left=True, width=response) for row in ROWS]),
        "action_log_probs": torch.tensor([padded(row["t"], 0.0, left=True, width=response) for row in ROWS]),
        "values": None,
    })  # fmt: skip
    batch.metadata = {"uids": ["a", "b"]}
    batch.save(str(folder / "global_step_3_training_input.pkl"))
    for name in [name for name in sys.modules if name.split(".")[0] == "skyrl"]:
        del sys.modules[name]
    return folder / "global_step_3_training_input.pkl"


def pipeline_rl(source: Path, folder: Path) -> Path:
    import os
    from typing import Literal, Optional

    import orjson
    from pydantic import BaseModel, Field

    given = {"BaseModel": BaseModel, "Field": Field, "List": list, "Dict": dict, "np": np, "Optional": Optional}
    text = taken(source / "PipelineRL/pipelinerl/rollouts.py", "TrainingText", given=given)["TrainingText"]
    text.model_rebuild(_types_namespace=given)
    given = {
        "StreamWriter": object,
        "SingleStreamSpec": object,
        "Literal": Literal,
        "os": os,
        "orjson": orjson,
        "torch": torch,
        "BaseModel": BaseModel,
    }
    writer = taken(
        source / "PipelineRL/pipelinerl/streams.py", "stream_dir", "stream_file", "FileStreamWriter", given=given
    )["FileStreamWriter"]
    stream = SimpleNamespace(exp_path=folder, topic="actor", instance=0, partition=0)
    texts = [
        text(
            text="p r", n_predicted=1, logprobs=row["r"], input_ids=tokens(row), labels=[-100] * len(row["prompt"]) + row["response"],
            prompt_tokens=len(row["prompt"]), output_tokens=len(row["response"]), group_id="g", metadata={"model_version": 4},
        )
        for row in ROWS
    ]  # fmt: skip
    with writer(stream) as file:
        file.write([one.model_dump() for one in texts])  # as actor.py does
    return folder / "streams/actor/0/0/0.jsonl"


def trl(source: Path, folder: Path) -> Path:
    import math
    import os

    import pandas as pd

    hold = SimpleNamespace(
        model=SimpleNamespace(training=True), _metrics={"train": {}}, accelerator=SimpleNamespace(is_main_process=True), log_completions=True,
        state=SimpleNamespace(global_step=3), num_completions_to_print=0, args=SimpleNamespace(report_to=[], output_dir=str(folder)),
        _logs={"prompt": ["p"], "completion": ["r"], "rewards": {"f": [1.0]}, "advantages": [0.5], "extra": {}, "images": []},
    )  # fmt: skip
    given = {"math": math, "os": os, "pd": pd, "super": MagicMock, "is_rich_available": lambda: False}
    (folder / "completions").mkdir()
    taken(source / "trl/trl/trainer/grpo_trainer.py", "GRPOTrainer.log", given=given)["log"](hold, {})
    return folder / "completions/completions_00003.parquet"


def verl(source: Path, folder: Path, more: Names | None = None) -> Path:
    import os

    file = source / "verl/verl/trainer/ppo/ray_trainer.py"
    dump = taken(file, "RayPPOTrainer._dump_generations", given={"os": os, "json": json})["_dump_generations"]
    dump(SimpleNamespace(global_steps=3), ["p"], ["r"], ["42"], [1.0], more or {}, str(folder))
    return folder / "3.jsonl"


def verl_validation(source: Path, folder: Path) -> Path:
    """The same writer, with what `_validate` gives it."""
    return verl(source, folder, {"reward": [1.0], "acc": [True]})


def ms_swift(source: Path, folder: Path) -> Path:
    import os
    from queue import Queue
    from threading import Thread
    from typing import Literal

    given = {
        "os": os,
        "json": json,
        "Queue": Queue,
        "Thread": Thread,
        "Literal": Literal,
        "Dict": dict,
        "List": list,
        "Union": MagicMock(),
    }
    given |= {
        "is_master": lambda: True,
        "is_last_rank": lambda: True,
        "dist": MagicMock(),
        "logger": MagicMock(),
        "check_json_format": lambda x: x,
    }
    writer = taken(source / "ms-swift/swift/utils/io_utils.py", "JsonlWriter", given=given)["JsonlWriter"]
    writer(str(folder / "completions.jsonl")).append(
        {"step": ["3"], "prompt": ["p"], "completion": ["r"], "advantages": [0.5]}
    )
    return folder / "completions.jsonl"


def skyrl_evaluation(source: Path, folder: Path) -> Path:
    file = source / "SkyRL/skyrl/train/utils/trainer_utils.py"
    given = {"json": json, "logger": MagicMock(), "sanitize_data_source": str}
    dump = taken(file, "dump_per_dataset_eval_results", given=given)["dump_per_dataset_eval_results"]
    output = {"prompt_token_ids": [[5]], "response_ids": [[8]], "rewards": [1.0]}
    dump(folder, SimpleNamespace(decode=str), output, ["gsm8k"], ["env"], [{}], {"score": 1.0})
    return folder / "gsm8k.jsonl"


def vllm_chat(source: Path, folder: Path) -> Path:
    from vllm.entrypoints.openai.chat_completion import protocol as chat
    from vllm.entrypoints.serve.engine.protocol import UsageInfo

    content = [
        chat.ChatCompletionLogProbsContent(token=str(token), logprob=r, bytes=None, top_logprobs=[])
        for token, r in zip(ROWS[0]["response"], ROWS[0]["r"], strict=True)
    ]
    choice = chat.ChatCompletionResponseChoice(
        index=0, message=chat.ChatMessage(role="assistant", content="r"), logprobs=chat.ChatCompletionLogProbs(content=content),
        token_ids=ROWS[0]["response"],
    )  # fmt: skip
    answer = chat.ChatCompletionResponse(
        model="m", choices=[choice], usage=UsageInfo(), prompt_token_ids=ROWS[0]["prompt"]
    )
    (folder / "chat.jsonl").write_text(answer.model_dump_json() + "\n")
    return folder / "chat.jsonl"


def vllm_completions(source: Path, folder: Path) -> Path:
    from vllm.entrypoints.openai.completion import protocol
    from vllm.entrypoints.serve.engine.protocol import UsageInfo

    choices = [
        protocol.CompletionResponseChoice(
            index=0, text="r", token_ids=row["response"], prompt_token_ids=row["prompt"],
            logprobs=protocol.CompletionLogProbs(token_logprobs=row["r"], tokens=["x"] * len(row["r"])),
        )
        for row in ROWS
    ]  # fmt: skip
    answer = protocol.CompletionResponse(model="m", choices=choices, usage=UsageInfo())
    (folder / "completions.jsonl").write_text(answer.model_dump_json() + "\n")
    return folder / "completions.jsonl"


def logprobe_rows(source: Path, folder: Path) -> Path:
    """What a recorder leaves in the spool, without rollout log-probs."""
    from logprobe.collectors import Recorder
    from logprobe.collectors.spool.segments import SegmentPath, read_segment, run_dir

    recorder = Recorder(folder, "run")
    for index, row in enumerate(ROWS):
        recorder.training(
            step=1,
            sample_ids=[str(index)],
            token_ids=[tokens(row)],
            mask=[mask(row)],
            trainer_logprobs=[whole(row, "t")],
        )
    recorder.close()
    segments = [SegmentPath.parse(path) for path in sorted(run_dir(folder, "run").glob("*/*.arrow"))]
    rows = [
        row for segment in segments if segment.kind == "training" for row in read_segment(segment).table.to_pylist()
    ]
    (folder / "rows.jsonl").write_text("".join(json.dumps(row, default=str) + "\n" for row in rows))
    return folder / "rows.jsonl"


# By format: its writer, the scorings it has, and of those that have no tokens the columns that must be named as missing.
READ: dict[str, tuple[Callable[[Path, Path], Path], str]] = {
    "prime-rl, token exports": (prime_rl, "rt"),
    "NeMo-RL, train_data_step": (nemo_rl, "rt"),
    "open-instruct, rollouts": (open_instruct, "r"),
    "slime, rollout dump": (slime_rollout, "r"),
    "slime, training dump": (slime_training, "rt"),
    "SkyRL, dumped batch": (skyrl, "rt"),
    "PipelineRL, actor stream": (pipeline_rl, "r"),
    "vLLM, chat response": (vllm_chat, "r"),
    "vLLM, completions response": (vllm_completions, "r"),
    "logprobe, a column missing": (logprobe_rows, "t"),
}
TEXT: dict[str, Callable[[Path, Path], Path]] = {
    "TRL, completions parquet": trl,
    "verl, rollout dump": verl,
    "verl, validation dump": verl_validation,
    "ms-swift, completions.jsonl": ms_swift,
    "SkyRL, evaluation dump": skyrl_evaluation,
}


def read(name: str, source: Path, folder: Path) -> str:
    """What came of it, in words; empty: as it should be."""
    folder.mkdir()
    writer, sides = READ[name]
    found = read_sample(writer(source, folder))
    for one, row in zip(found, ROWS, strict=False):
        if ([*one.prompt_ids], [*one.response_ids]) != (row["prompt"], row["response"]):
            return f"tokens {one.prompt_ids}, {one.response_ids}"
        for side, values in (("r", one.rollout), ("t", one.trainer)):
            expected = row[side] if side in sides else None
            if (values is None) != (expected is None) or (expected is not None and not np.allclose(values, expected)):
                return f"{side} is {values}, not {expected}"
    return "" if found else "no sequence"


def refused(name: str, source: Path, folder: Path) -> str:
    """Likewise of a file that has texts only: it must be refused, and say what a file would need for what."""
    folder.mkdir()
    try:
        read_sample(TEXT[name](source, folder))
    except ConfigurationError as error:
        wanted = ("token ids", "rollout_logprobs", "trainer_logprobs", "re-tokenized")
        return "" if all(word in str(error) for word in wanted) else str(error)
    return "read, although it has no token ids"


def main(source: Path) -> int:
    wrong = 0
    with tempfile.TemporaryDirectory() as scratch:
        for number, name in enumerate([*READ, *TEXT]):
            kind = read if name in READ else refused
            try:
                words = kind(name, source, Path(scratch) / str(number))
            except Exception as error:
                words = f"{type(error).__name__}: {error}"
            wrong += bool(words)
            print(f"{name}: {words or ('read' if name in READ else 'refused, and says what is missing')}")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
