#!/bin/bash
# OpenRLHF on a Ray cluster that runs already; start this on its head node. On every node: logprobe installed at the same path.
# No line of code changes: the workers get the hooks of `logprobe run` (docs/frameworks.md).
set -euo pipefail
run=my-run-$(date +%Y%m%d-%H%M%S)
hooks=$(logprobe run --home /local/logprobe -- printenv PYTHONPATH)

finish() {
    kill -TERM "$service" && wait "$service" # once what was recorded a moment ago has come
}
logprobe up --no-app --home /data/logprobe --ray /local/logprobe &
service=$!
trap finish EXIT

ray job submit --address http://127.0.0.1:8265 \
    --runtime-env-json "{\"env_vars\": {\"PYTHONPATH\": \"$hooks\", \"LOGPROBE_HOME\": \"/local/logprobe\", \"LOGPROBE_RUN\": \"$run\"}}" \
    -- python3 -m openrlhf.cli.train_ppo_ray \
    --actor.model_name_or_path Qwen/Qwen3-8B \
    --reward.remote_url /shared/reward.py \
    --data.prompt_dataset /shared/data/train.jsonl \
    --data.input_key prompt \
    --data.label_key answer \
    --data.apply_chat_template \
    --algo.advantage.estimator group_norm \
    --actor.num_nodes 2 \
    --actor.num_gpus_per_node 8 \
    --ref.num_nodes 2 \
    --ref.num_gpus_per_node 8 \
    --train.colocate_all \
    --vllm.num_engines 8 \
    --vllm.tensor_parallel_size 2 \
    --vllm.gpu_memory_utilization 0.6 \
    --vllm.enable_sleep \
    --ds.enable_sleep \
    --ds.zero_stage 3 \
    --ds.param_dtype bf16 \
    --rollout.batch_size 128 \
    --rollout.n_samples_per_prompt 8 \
    --rollout.max_new_tokens 4096 \
    --train.batch_size 1024 \
    --ckpt.output_dir /shared/checkpoints/my-run
