"""A plain torch loop, recorded: `LOGPROBE_HOME=/tmp/home LOGPROBE_RUN=plain python docs/examples/plain_torch.py`.

A toy policy samples in bfloat16, as an engine might, and is trained in float32 with a clipped policy gradient, two updates per batch.
What belongs to logprobe is marked with `# logprobe`.
"""

from __future__ import annotations

import torch
from torch import nn

from logprobe.collectors import Recorder  # logprobe
from logprobe.collectors.weights import mark  # logprobe

VOCABULARY, LENGTH, BATCH, UPDATES, STEPS = 32, 12, 16, 2, 6
TEMPERATURE = 0.8


class Policy(nn.Module):
    """Predicts the next token from the last one."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(VOCABULARY, 16), nn.Linear(16, VOCABULARY)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """[batch, time] → logits [batch, time, vocabulary]."""
        return self.head(torch.tanh(self.embed(tokens)))


def log_softmax(logits: torch.Tensor) -> torch.Tensor:
    """Scaled by the temperature that the engine samples with: both sides must use the same."""
    return torch.log_softmax(logits.float() / TEMPERATURE, dim=-1)


def sample(policy: Policy) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens [batch, 1 + time] with their prompt in front, and the sampler's log-probs [batch, time]."""
    engine = Policy().to(torch.bfloat16)
    engine.load_state_dict(policy.state_dict())
    tokens = torch.randint(VOCABULARY, (BATCH, 1))
    logprobs = []
    with torch.no_grad():
        for _ in range(LENGTH):
            row = log_softmax(engine(tokens[:, -1:])[:, -1])
            chosen = torch.multinomial(row.exp(), 1)
            logprobs.append(row.gather(1, chosen))
            tokens = torch.cat([tokens, chosen], dim=1)
    return tokens, torch.cat(logprobs, dim=1)


def evaluate(policy: Policy, tokens: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-probs of the sampled tokens and entropies, both [batch, time]."""
    rows = log_softmax(policy(tokens[:, :-1]))
    return rows.gather(2, tokens[:, 1:, None]).squeeze(2), -(rows.exp() * rows).sum(dim=2)


def train(recorder: Recorder) -> None:
    """A step is an optimizer step; it gets the number that your own log uses."""
    policy = Policy()
    optimizer = torch.optim.Adam(policy.parameters(), lr=1e-2)
    recorder.config({"temperature": TEMPERATURE, "compute_dtype": "float32"}, kind="trainer_config")  # logprobe
    for step in range(STEPS):
        if step % UPDATES == 0:  # a new batch, sampled with the present weights
            mark(step, step=step, recorder=recorder)  # logprobe: the engine has these weights
            version = step
            tokens, rollout = sample(policy)
            rewards = (tokens[:, 1:] % 2 == 0).float().mean(dim=1)
            advantages = (rewards - rewards.mean())[:, None].expand_as(rollout)
            with torch.no_grad():
                old, _ = evaluate(policy, tokens)
            names = [f"{step}-{row}" for row in range(BATCH)]
            recorder.rollout(
                sample_ids=names, token_ids=list(tokens[:, 1:]), logprobs=list(rollout), weight_version=version
            )  # logprobe
        current, entropy = evaluate(policy, tokens)
        ratio = (current - old).exp()
        loss = -torch.minimum(ratio * advantages, ratio.clamp(0.8, 1.2) * advantages).mean()
        recorder.training(  # logprobe: what this step trains on, before the update
            step=step,
            sample_ids=names,
            token_ids=tokens[:, 1:],
            mask=torch.ones_like(rollout),
            rollout_logprobs=rollout,
            trainer_logprobs=old,
            current_logprobs=current,
            entropy=entropy,
            advantages=advantages,
            rewards=rewards,
            weight_version=version,
        )
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        difference = (old - rollout).double()
        k3 = (difference.expm1() - difference).mean()
        recorder.step(step, {"loss": loss.item(), "my_k3": k3.item()})  # logprobe: your own scalars


if __name__ == "__main__":
    torch.manual_seed(0)
    with Recorder() as made:  # logprobe: LOGPROBE_HOME, LOGPROBE_RUN
        train(made)
