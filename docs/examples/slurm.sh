#!/bin/bash
# Slurm: every task records to its node's own disk; the first collector of a node starts the relay, which ends when all is sent.
#SBATCH --nodes=8
#SBATCH --ntasks-per-node=8
export LOGPROBE_HOME=/tmp/logprobe-$SLURM_JOB_ID LOGPROBE_RUN=my-run-$SLURM_JOB_ID
files=$HOME/.config/logprobe
export LOGPROBE_SERVICE=grpc+tls://monitor.example.org:7070,ca=$files/ca.pem,token=$files/token
srun python train.py
# Slurm kills what is left of a job: send the rest before the allocation ends.
srun --ntasks-per-node=1 timeout 300 logprobe relay --drain
