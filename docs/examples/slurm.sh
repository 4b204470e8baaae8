#!/bin/bash
# Slurm: every task records to its node's own disk; the first collector of a node starts the relay, which ends when all is sent.
#SBATCH --nodes=8
#SBATCH --ntasks-per-node=8
export LOGPROBE_HOME=/tmp/logprobe-$SLURM_JOB_ID LOGPROBE_RUN=my-run-$SLURM_JOB_ID
export LOGPROBE_SERVICE=grpc+tls://monitor.example.org:7070
export LOGPROBE_SERVICE_CA=$HOME/.config/logprobe/ca.pem LOGPROBE_SERVICE_TOKEN=$HOME/.config/logprobe/token
srun python train.py
# Slurm kills what is left of a job: send the rest before the allocation ends.
srun --ntasks-per-node=1 timeout 300 logprobe relay --drain
