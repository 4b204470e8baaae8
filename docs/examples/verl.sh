#!/bin/bash
# verl on a Ray cluster that runs already; start this on its head node. On every node: logprobe installed.
# No line of code changes: verl finds logprobe by itself (docs/frameworks.md).
set -euo pipefail
run=my-run-$(date +%Y%m%d-%H%M%S)

finish() {
    kill -TERM "$service" && wait "$service" # once what was recorded a moment ago has come
}
logprobe up --no-app --home /data/logprobe --ray /local/logprobe &
service=$!
trap finish EXIT

ray job submit --address http://127.0.0.1:8265 \
    --runtime-env-json "{\"env_vars\": {\"LOGPROBE_HOME\": \"/local/logprobe\", \"LOGPROBE_RUN\": \"$run\"}}" \
    -- python3 -m verl.trainer.main_ppo \
    algorithm.adv_estimator=grpo \
    data.train_files=/shared/data/train.parquet \
    data.val_files=/shared/data/test.parquet \
    data.train_batch_size=512 \
    data.max_prompt_length=1024 \
    data.max_response_length=4096 \
    actor_rollout_ref.model.path=Qwen/Qwen3-8B \
    actor_rollout_ref.actor.ppo_mini_batch_size=128 \
    actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=2 \
    actor_rollout_ref.rollout.name=vllm \
    actor_rollout_ref.rollout.n=8 \
    actor_rollout_ref.rollout.tensor_model_parallel_size=2 \
    actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=4 \
    actor_rollout_ref.rollout.calculate_log_probs=true \
    trainer.nnodes=2 \
    trainer.n_gpus_per_node=8 \
    trainer.experiment_name="$run" \
    trainer.total_epochs=1
