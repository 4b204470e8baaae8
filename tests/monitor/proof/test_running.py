"""What goes wrong around scorers is said in one line: a full disk, a checkpoint that cannot be loaded."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from segments import on_small_disk

from logprobe.app.text.scores import text
from logprobe.collectors.errors import ConfigurationError
from logprobe.monitor.proof.experiments.experiment import bisect
from logprobe.monitor.proof.experiments.knobs import chosen
from logprobe.monitor.proof.sample import TokenSequence
from logprobe.monitor.proof.scorers.running import ENGINE, FORWARD, LAYERS, Outcome, run_scorer
from logprobe.monitor.proof.scoring import REFERENCE, score
from logprobe.monitor.proof.setup import Setup

SEQUENCE = TokenSequence("a", (1,), (2, 3))


def test_a_full_disk_gives_one_clear_line(tmp_path: Path):
    script = tmp_path / "script.py"
    script.write_text(
        "import sys, tempfile; from pathlib import Path\n"
        "from logprobe.collectors.errors import StoreError\n"
        "from logprobe.monitor.proof.scorers.running import FORWARD, run_scorer\n"
        "tempfile.tempdir = sys.argv[1]\n"
        "try: run_scorer(FORWARD, {'sequences': list(range(1000000))}, seconds=60)\n"
        "except StoreError as error: print(error)\n"
    )
    printed = on_small_disk(tmp_path / "disk", 1, script)
    assert printed == f"cannot write to {tmp_path / 'disk'}: No space left on device; free some space, or set TMPDIR\n"


def test_a_disk_that_fills_while_an_arm_runs_is_no_result_of_the_arm(tmp_path: Path):
    (tmp_path / "ours.py").write_text("def score(sequences, model): raise OSError(28, 'No space left on device')")
    job = {"model": str(tmp_path), "function": "ours:score", "folder": str(tmp_path), "settings": {}, "sequences": []}
    outcome = run_scorer(FORWARD, job, seconds=120)
    assert (outcome.answer, outcome.answered) == (None, False)
    assert outcome.error == "ended with exit code 1: OSError: [Errno 28] No space left on device"


@pytest.mark.parametrize("experiment", [score, bisect])
def test_a_checkpoint_that_nobody_can_load_gives_one_clear_line(experiment):
    def broken(module: str, _: dict, **__: object) -> Outcome:
        who = "engine" if module == ENGINE else "reference"
        return Outcome(None, f"SafetensorError: {who} cannot read it", 1.0, answered=True)

    with pytest.raises(ConfigurationError) as caught:
        experiment([SEQUENCE], Setup({"": Path("model")}), run=broken)
    assert str(caught.value) == (
        "nothing could be scored: engine: SafetensorError: engine cannot read it; "
        "reference: SafetensorError: reference cannot read it"
    )


def test_a_trainer_whose_answer_depends_on_its_batch_shows_by_how_much(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """All at once, the same again, eight at a time, one at a time: each beside the first."""
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "ours.py").write_text(
        "def score(sequences, model): return [[-1.0 - 0.01 * len(sequences)] * len(one['response_ids']) for one in sequences]"
    )
    monkeypatch.chdir(tmp_path)

    def run(module: str, job: dict, **more: object) -> Outcome:
        if module == FORWARD and job["function"] == "ours:score":
            return run_scorer(module, job, seconds=120)
        values = [[-1.1] * len(one["response_ids"]) for one in job["sequences"]]
        answer = {"values": values, "tokens_per_s": 1.0} if module == FORWARD else None
        return Outcome(answer, "no engine here", 0.0, answered=True)

    sequences = [TokenSequence(str(at), (1,), (2, 3)) for at in range(12)]
    found = score(sequences, Setup({"": tmp_path}, trainer="ours:score"), run=run)
    off = {pair.b: (round(pair.abs_diff_mean, 6), pair.tokens) for pair in found.pairs if pair.a == "t_fresh"}
    # Of twelve, eight and four: a step of four and one of eight. One at a time: only four sequences, eleven fewer.
    assert off == {
        "t_fresh_again": (0.0, 24),
        "t_fresh_eights": (round((8 * 0.04 + 4 * 0.08) / 12, 6), 24),
        "t_fresh_alone": (0.11, 8),
    }


def test_the_sequences_that_depart_are_named_with_their_engine_and_the_operation_where_bits_part(tmp_path: Path):
    """Half come from a replica whose r is rounded otherwise: which ones, and by how much."""
    (tmp_path / "config.json").write_text("{}")
    breaks = {"operation": "layer 0 mlp", "token": 3, "after": "embedding", "equal": 1}
    asked: list[dict] = []

    def run(module: str, job: dict, **_: object) -> Outcome:
        if module == LAYERS:
            asked.append(job)
            return Outcome({"breaks": breaks}, None, 0.0, answered=True)
        values = [[-1.0] * len(one["response_ids"]) for one in job["sequences"]]
        paths = dict.fromkeys(job.get("paths", ()), values)
        answer = {**paths, "values": values, "settings": {"dtype": "float32"}, "tokens_per_s": 1.0}
        return Outcome(answer, None, 0.0, answered=True)

    right, off = np.full(4, -1.0), np.array([-1.0, -1.05, -0.95, -1.0])
    sequences = [
        TokenSequence(f"s{at}", (1,), (2, 3, 4, 5), off if at % 2 else right, right, replica="ba"[at % 2])
        for at in range(12)
    ]
    found = score(sequences, Setup({"": tmp_path}), exact=True, run=run)
    named = {one["sample_id"]: one["replica"] for one in found.document()["sequences"]}
    assert named == {f"s{at}": "a" for at in range(1, 12, 2)}
    assert all(one["engine_state"] > 1e-4 > one["trainer"] for one in found.document()["sequences"])
    (job,) = asked
    assert (job["sequences"], job["sides"][1], job["overrides"]["enforce_eager"]) == ([sequences[1].job()], {}, True)
    assert found.document()["breaks"] == {"a": "q", "b": "r_fresh", "sequence": 1, **breaks}
    printed = text(found, exact=True)
    assert "off: 6 of 12 sequences (engines: a 6): s1, s3" in printed
    assert (
        "in s1: differ from layer 0 mlp on, first at token 3 of prompt and response; equal in every bit until embedding"
        in printed
    )
    assert score(sequences, Setup({"": tmp_path}), run=run).breaks is None
    assert len(asked) == 1


def test_an_engine_that_does_not_start_is_tried_eagerly_and_all_arms_with_it(tmp_path: Path):
    asked: list[dict] = []

    def run(module: str, job: dict, **_: object) -> Outcome:
        off = 0.0
        if module == ENGINE:
            asked.append(job["overrides"])
            if not job["overrides"].get("enforce_eager"):
                return Outcome(None, "RuntimeError: cannot compile", 0.0, answered=True)
            off = 0.0 if job["overrides"].get("dtype") == "float32" else 0.05
        values = [[-1.0 + off] * len(one["response_ids"]) for one in job["sequences"]]
        answer = {"decode": values, "values": values, "settings": {"dtype": "bfloat16"}, "tokens_per_s": 1.0}
        return Outcome(answer, None, 0.0, answered=True)

    values = np.array([-0.95, -0.95]), np.array([-1.0, -1.0])
    sequences = [TokenSequence(str(at), (1,), (2, 3), *values) for at in range(6)]
    found = bisect(sequences, Setup({"": tmp_path}), knobs=chosen(["dtype", "kv_cache_dtype"]), run=run)
    assert "engine: RuntimeError: cannot compile; started with enforce_eager" in found.not_measured
    assert [overrides.get("enforce_eager") for overrides in asked] == [None, *[True] * (len(asked) - 1)]
    assert (found.decision.departs_all, found.smallest_set) == (("engine",), ("dtype",))


def test_without_an_engine_the_trainers_layers_are_searched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """No setting closes the gap: the document says at which layer hidden states part."""
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "ours.py").write_text("def score(sequences, model, dtype='bfloat16'): ...")
    monkeypatch.chdir(tmp_path)
    layers = [["embedding", 0.0], ["layer 0", 1e-7], ["layer 1", 1e-2], ["layer 2", 1.1e-2]]
    asked: list[dict] = []

    def run(module: str, job: dict, **_: object) -> Outcome:
        if module == ENGINE:
            return Outcome(None, "no engine here", 0.0, answered=True)
        if module == LAYERS:
            asked.append(job)
            return Outcome({"layers": layers}, None, 0.0, answered=True)
        off = 0.05 if job["function"] == "ours:score" else 0.0
        values = [[-1.0 + off] * len(one["response_ids"]) for one in job["sequences"]]
        return Outcome({"values": values, "tokens_per_s": 1.0}, None, 0.0, answered=True)

    sequences = [TokenSequence(str(at), (1,), (2, 3)) for at in range(6)]
    knobs = chosen(["trainer.dtype"])
    found = bisect(sequences, Setup({"": tmp_path}, trainer="ours:score"), knobs=knobs, run=run).document()
    assert (found["departs"], found["smallest_set"]) == ("trainer", [])
    assert (found["drifts_at"], found["layers"]) == ({"trainer": ["layer 1"]}, {"trainer": layers})
    ((reference, trainer),) = [job["sides"] for job in asked]
    assert (reference["function"], trainer["function"]) == (REFERENCE, "ours:score")
