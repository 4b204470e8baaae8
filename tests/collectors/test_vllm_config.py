"""Documents of engines and requests; a real engine's is looked at in tests/e2e."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, field
from enum import Enum
from types import SimpleNamespace
from typing import Any

import pytest

from logprobe.collectors.vllm.config import engine_document, environment, sampling_document


@pytest.fixture(autouse=True)
def vllm(monkeypatch: pytest.MonkeyPatch) -> None:
    """Loaded, as in every process that asks for these documents: to import the real one takes seconds."""
    monkeypatch.setitem(sys.modules, "vllm", SimpleNamespace(__version__="0.32.0"))  # type: ignore[arg-type]


class Mode(Enum):
    PIECEWISE = 1


@dataclass
class ModelConfig:
    model: str = "m"
    dtype: Any = None
    logprobs_mode: str = "processed_logprobs"
    hf_config: Any = None
    hf_token: str = "hf_secret"
    backends: set[str] = field(default_factory=lambda: {"b", "a"})


@dataclass
class ParallelConfig:
    tensor_parallel_size: int = 2
    data_parallel_master_port: int = 29501
    rank: int = 3


@dataclass
class VllmConfig:
    model_config: ModelConfig
    parallel_config: ParallelConfig
    instance_id: str = "changes-every-time"
    mode: Mode = Mode.PIECEWISE
    hook: Any = None


def document(**more: Any) -> dict[str, Any]:
    model = ModelConfig(hf_config=SimpleNamespace(architectures=["Qwen3ForCausalLM"]), **more)
    return engine_document(VllmConfig(model, ParallelConfig(), hook=object()), injected=True)


def test_summary_has_what_decides_about_logprobs() -> None:
    summary = document()["summary"]
    assert summary["logprobs_mode"] == "processed_logprobs"
    assert summary["tensor_parallel_size"] == 2
    assert summary["architectures"] == ["Qwen3ForCausalLM"]
    assert summary["kv_cache_dtype"] is summary["return_sampling_mask"] is None  # no such setting here: unknown


def test_summary_says_whether_sampling_masks_are_returned() -> None:
    config = SimpleNamespace(model_config=SimpleNamespace(return_sampling_mask=True))
    assert engine_document(config, injected=False)["summary"]["return_sampling_mask"] is True


def test_an_attention_backend_that_was_asked_for_is_named_as_the_worker_names_it() -> None:
    config = SimpleNamespace(attention_config=SimpleNamespace(backend=Enum("Backend", "TRITON_ATTN")["TRITON_ATTN"]))
    effective = {"attention_backend": "TRITON_ATTN"}
    found = engine_document(config, injected=False, effective=effective)
    assert found["summary"]["attention_backend"] == found["effective"]["attention_backend"]


def test_document_is_json_without_secrets_and_passing_things() -> None:
    text = json.dumps(document())
    assert document()["config"]["mode"] == "piecewise"
    assert document()["config"]["model_config"]["backends"] == ["a", "b"]
    assert document()["logprobe"] == {"injected_logprobs": True}
    assert document()["versions"]["vllm"] == "0.32.0"
    for unwanted in ("hf_secret", "29501", "changes-every-time", " at 0x", '"rank"'):
        assert unwanted not in text


def test_the_same_setup_gives_the_same_document() -> None:
    assert document() == document()
    assert document(model="n") != document()


def test_environment_that_steers_numerics() -> None:
    given = {
        "VLLM_BATCH_INVARIANT": "1",
        "VLLM_API_KEY": "secret",
        "VLLM_HOST_IP": "10.0.0.1",
        "VLLM_PORT": "8000",
        "HF_TOKEN": "secret",
        "NVIDIA_TF32_OVERRIDE": "0",
        "PATH": "/bin",
    }
    assert environment(given) == {"NVIDIA_TF32_OVERRIDE": "0", "VLLM_BATCH_INVARIANT": "1"}


def test_sampling_params_that_change_the_distribution() -> None:
    params = SimpleNamespace(temperature=0.7, top_p=0.9, logit_bias={5: -1.0}, stop=["x"], seed=3, max_tokens=17)
    found = sampling_document(params)
    assert (found["temperature"], found["top_p"], found["logit_bias"]) == (0.7, 0.9, {"5": -1.0})
    assert found["min_p"] is None  # not a parameter of this vLLM
    assert not {"seed", "max_tokens"} & found.keys()  # one document for requests that differ in nothing else


def test_long_values_are_cut() -> None:
    params = SimpleNamespace(allowed_token_ids=list(range(1000)), stop="y" * 9000)
    found = sampling_document(params)
    assert str(found["allowed_token_ids"][-1]).startswith("… 1000 items ")
    assert len(str(found["stop"])) < 600


def test_what_differs_beyond_the_cut_is_another_document() -> None:
    def of(*ids: int, stop: str = "") -> object:
        return sampling_document(SimpleNamespace(allowed_token_ids=[*range(64), *ids], stop="y" * 512 + stop))

    assert of(70, stop="a") == of(70, stop="a")
    assert of(70) != of(71)
    assert of(stop="a") != of(stop="b")
    lists = [[object() for _ in range(65)] for _ in range(2)]  # whose text is an address
    first, second = (sampling_document(SimpleNamespace(bad_words=items)) for items in lists)
    assert first == second
