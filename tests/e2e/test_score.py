"""`logprobe bisect --only-score` on a real engine, started once: what it reads is what the engine would report, and the culprit is named."""

from __future__ import annotations

import json
import math
import os
import random
import subprocess
import sys

import numpy as np
import pytest
from audited import Audit
from engine_process import ENGINE_ENVIRONMENT
from processes import logprobe

from logprobe.monitor.proof.departing import UNLIKE
from logprobe.monitor.proof.forward import score
from logprobe.monitor.proof.scorers import running

pytestmark = pytest.mark.engine

ENGINE = "--dtype float32 --logprobs-mode processed_logprobs --enforce-eager --block-size 32 --max-model-len 256"
SCORE = [sys.executable, "-m", "logprobe.app.cli", "bisect", "--only-score"]
PLAIN, TRUNCATED = 8, 4  # sequences sampled at a temperature alone, and with top-p as well
TOP_P = 0.9


@pytest.fixture(scope="module")
def audit(tmp_path_factory):
    return Audit(tmp_path_factory.mktemp("audit"))


@pytest.fixture(scope="module")
def scored(models, tmp_path_factory, audit):
    """The document of a sample whose r is exact for the plain sequences and whose t was computed in bfloat16."""
    folder = tmp_path_factory.mktemp("score")
    rng = random.Random(5)
    rows = [
        {
            "sample_id": f"s{index}",
            "prompt_ids": [rng.randrange(2, 512) for _ in range(rng.randint(3, 70))],
            "response_ids": [rng.randrange(2, 512) for _ in range(rng.randint(1, 20))],
            "temperature": (0.7, 1.0, 1.3)[index % 3],
            "sampling": {"top_p": TOP_P} if index >= PLAIN else {},
        }
        for index in range(PLAIN + TRUNCATED)
    ]
    sample = folder / "sample.jsonl"
    scores = (score(rows, models / "new", dtype=dtype) for dtype in ("float32", "bfloat16"))
    for row, exact, rounded in zip(rows, *scores, strict=True):
        row.update(rollout_logprobs=exact, trainer_logprobs=rounded)
    sample.write_text("".join(json.dumps(row) + "\n" for row in rows))
    done = subprocess.run(
        [*SCORE, "--sample", str(sample), "--model", str(models / "new"), "--engine-args", ENGINE, "--json"],
        # Whoever set this for other tools still sends nothing.
        env={**os.environ, **ENGINE_ENVIRONMENT, **audit.environment, "HF_HUB_OFFLINE": "0"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def _pair(document, a, b):
    (found,) = [pair for pair in document["pairs"] if (pair["a"], pair["b"]) == (a, b)]
    return found


def test_prompts_are_scored_at_the_temperature_of_the_run(scored):
    """Prefill covers the sequences whose only sampling param is the temperature, and agrees with the reference."""
    pair = _pair(scored, "r_fresh", "r_fresh_prefill")
    assert pair["k3"] < 1e-10
    assert 0 < pair["tokens"] < _pair(scored, "q", "t")["tokens"]


def test_forced_decoding_reads_what_a_processed_engine_would_report(scored):
    """Random tokens mostly lie outside the nucleus: the engine gives them nothing. The others are off by up to −ln top-p."""
    pair = _pair(scored, "r", "r_fresh")
    assert 0 < pair["broken"] < 1
    assert 0 < pair["abs_diff_mean"] < -math.log(TOP_P)


def test_what_scorers_differ_by_themselves_is_beside_the_gap(scored):
    """A request alone differs by rounding from one among others; r and t are not equal, and the first token that is not is named."""
    pair = _pair(scored, "r_fresh", "r_fresh_alone")
    assert pair["k3"] < 1e-10
    assert 0 < pair["tokens"] < _pair(scored, "r_fresh", "r_fresh_prefill")["tokens"]
    assert scored["exact"] is False
    assert _pair(scored, "r", "t")["first_unequal"][0] == 0


def test_the_trainer_in_bfloat16_departs_and_the_document_has_its_promised_form(scored):
    assert scored["departs_all"] == ["trainer"]
    # r is the reference's here. The engine renormalizes within top-p, which neither did: it is not the one that sampled.
    assert (scored["departs"], scored["why"]) == ("unknown", UNLIKE)
    assert _pair(scored, "q", "t")["k3"] > 1e-4
    assert set(scored) >= {"departs", "scores", "pairs", "path", "not_measured"}
    assert scored["path"] == "decode"
    assert scored["engine"]["logprobs_mode"] == "processed_logprobs"
    assert np.isfinite([scored["scores"][name] for name in ("r", "r_fresh", "q", "t")]).all()
    assert any("trainer" in words for words in scored["not_measured"])


def test_nothing_is_sent_to_another_machine(scored, audit):
    """The hook was in the command, in the engine's process and in the reference's."""
    started = audit.started()
    for module in (
        "logprobe.app.cli",
        "logprobe.monitor.proof.scorers.engine_process",
        "logprobe.monitor.proof.scorers.forward_process",
    ):
        assert any(module in line for line in started), started
    assert audit.foreign() == []


def test_the_hook_sees_what_it_is_for(tmp_path):
    """It sees a name that is looked up, a connection and a datagram; loopback counts as this machine."""
    audit = Audit(tmp_path)
    code = (
        "import contextlib, socket\n"
        "with contextlib.suppress(OSError): socket.getaddrinfo('hub.invalid', 443)\n"
        "with socket.socket() as one, contextlib.suppress(OSError):\n"
        "    one.settimeout(0.01); one.connect(('192.0.2.1', 443))\n"
        "with socket.socket(type=socket.SOCK_DGRAM) as one, contextlib.suppress(OSError): one.sendto(b'', ('192.0.2.2', 9))\n"
        "with socket.socket() as one, contextlib.suppress(OSError): one.connect(('127.0.0.1', 9))"
    )
    subprocess.run([sys.executable, "-c", code], env={**os.environ, **audit.environment}, check=True)
    seen = [(line["event"], line["what"]) for line in audit.foreign()]
    assert seen == [
        ("socket.getaddrinfo", "hub.invalid"),
        ("socket.connect", ["192.0.2.1", 443]),
        ("socket.sendto", ["192.0.2.2", 9]),
    ]


def test_scorers_are_offline_whatever_the_caller_allows(monkeypatch):
    for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"):
        monkeypatch.setenv(name, "0")
        assert running._variables({})[name] == "1"


@pytest.mark.long
def test_a_checkpoint_that_lacks_files_is_not_looked_up_on_a_hub(tmp_path):
    """Neither its weights nor its tokenizer are there, and its configuration names a model of a hub."""
    model, audit = tmp_path / "model", Audit(tmp_path)
    model.mkdir()
    config = {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "_name_or_path": "somebody/some-model"}
    (model / "config.json").write_text(json.dumps({**config, "auto_map": {"AutoConfig": "somebody/other--c.Config"}}))
    sample = tmp_path / "a.jsonl"
    sample.write_text(json.dumps({"sample_id": "a", "prompt_ids": [1], "response_ids": [2]}) + "\n")
    arguments = ["--sample", str(sample), "--model", str(model), "--engine-args", "--tokenizer somebody/some-tokenizer"]
    environment = {**os.environ, **audit.environment, "HF_HUB_OFFLINE": "0", "TRANSFORMERS_OFFLINE": "0"}
    done = subprocess.run([*SCORE, *arguments], env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("logprobe: nothing could be scored: engine: ")
    assert "; reference: " in done.stderr
    assert audit.foreign() == []


def test_a_broken_checkpoint_gives_one_clear_line(tmp_path):
    sample = tmp_path / "a.jsonl"
    sample.write_text(json.dumps({"sample_id": "a", "prompt_ids": [1], "response_ids": [2]}) + "\n")
    done = logprobe("bisect", "--only-score", "--sample", sample, "--model", tmp_path, code=1)
    words = "no config.json; --model takes the folder of a Hugging Face checkpoint"
    assert (done.stdout, done.stderr) == ("", f"logprobe: {tmp_path}: {words}\n")
