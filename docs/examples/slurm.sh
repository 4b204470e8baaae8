#!/bin/bash
# Slurm: every task records to its node's own disk; the first collector of a node starts the shipper, which puts everything into the bucket.
# Credentials come from the environment (AWS_ACCESS_KEY_ID, AWS_ENDPOINT_URL, …), as `sbatch --export=ALL` passes it.
#SBATCH --nodes=8
#SBATCH --ntasks-per-node=8
export LOGPROBE_HOME=s3://my-bucket/team-a LOGPROBE_RUN=my-run-$SLURM_JOB_ID
export XDG_STATE_HOME=/tmp/logprobe-$SLURM_JOB_ID
srun python train.py
# Slurm kills what is left of a job: send the rest before the allocation ends.
srun --ntasks-per-node=1 logprobe ship --seconds 300
