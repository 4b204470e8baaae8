#!/bin/bash
# NeMo-RL with Slurm, from a checkout of it. Nothing of logprobe is needed where it trains: NeMo-RL writes both log-probs of each step to
# train_data_step<N>.jsonl, and the service's machine, which sees the folder, imports them; again from time to time: it adds what is new (docs/import-export.md).
set -euo pipefail
logs=/shared/nemo-rl/my-run

COMMAND="uv run ./examples/run_grpo.py --config examples/configs/grpo_math_1B.yaml \
    cluster.num_nodes=2 cluster.gpus_per_node=8 policy.generation.vllm_cfg.tensor_parallel_size=2 logger.log_dir=$logs" \
    CONTAINER=nvcr.io/nvidia/nemo-rl:latest MOUNTS="$PWD:$PWD,/shared:/shared" \
    sbatch --nodes=2 --gres=gpu:8 --time=4:0:0 --account=ACCOUNT --partition=PARTITION ray.sub

# NeMo-RL numbers its experiments: exp_001 is the first in a new folder.
ssh monitor.example.org logprobe import "$logs/exp_001" --run my-run --home /data/logprobe
