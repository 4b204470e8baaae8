"""Records a run whose prompts are kept, with an engine that reports raw log-probs at a temperature other than 1.

    python tests/proof/recorded_run.py MODEL HOME RUN

The engine is watched by the plugin; the trainer's side is right. `prove.py` then scores and bisects the run by its name alone.
"""

from __future__ import annotations

import os
import random
import sys
from pathlib import Path

VERSION = "7"


def record(model: Path, home: Path, run: str) -> None:
    """Two prompts with several answers each, one step."""
    from planted import ENVIRONMENT, RIGHT

    os.environ.update(ENVIRONMENT, LOGPROBE_HOME=str(home), LOGPROBE_RUN=run, LOGPROBE_RECORD="prompts=1")
    from vllm import EngineArgs, SamplingParams
    from vllm.sampling_params import RequestOutputKind
    from vllm.v1.engine.llm_engine import LLMEngine

    from logprobe.collectors import Recorder
    from logprobe.collectors.vllm import plugin
    from logprobe.collectors.vllm.ids import sample_ids
    from logprobe.collectors.weights import mark
    from logprobe.monitor.proof.forward import score

    recorder = Recorder(home, run, component="trainer")
    settings = {**RIGHT, "logprobs_mode": "raw_logprobs"}
    engine = LLMEngine.from_engine_args(EngineArgs(model=str(model), seed=1, **settings))
    mark(VERSION, 0, recorder=recorder)
    final = RequestOutputKind.FINAL_ONLY  # all answers to a prompt at once
    params = SamplingParams(
        n=4, max_tokens=20, temperature=0.7, logprobs=0, detokenize=False, ignore_eos=True, output_kind=final
    )
    rng = random.Random(3)
    prompts = {str(number): [rng.randrange(2, 512) for _ in range(12)] for number in range(6)}
    for name, prompt in prompts.items():
        engine.add_request(name, {"prompt_token_ids": prompt}, params)
    done = []
    while engine.has_unfinished_requests():
        done += [output for output in engine.step() if output.finished]
    assert plugin.flush(60)
    rows, names = [], []
    for output in done:
        names += sample_ids(output)
        tokens = [list(each.token_ids) for each in output.outputs]
        rows += [
            {"prompt_ids": prompts[output.request_id], "response_ids": each, "temperature": 0.7} for each in tokens
        ]
    recorder.training(
        step=0,
        sample_ids=names,
        token_ids=[row["response_ids"] for row in rows],
        trainer_logprobs=score(rows, model),
        weight_version=VERSION,
    )
    assert recorder.close(60)


if __name__ == "__main__":
    record(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3])
    sys.stdout.flush()
    os._exit(0)
