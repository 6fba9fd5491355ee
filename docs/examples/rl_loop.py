"""Reinforcement learning: a trainer, and inference processes that follow its weights through a folder or a bucket.

python rl_loop.py RUN              # a trainer and two inference processes; RUN may be s3://bucket/policy
python rl_loop.py RUN trainer      # or each by itself, on any host; who was killed is started again
python rl_loop.py RUN inference
"""

import hashlib
import subprocess
import sys
import time

import torch

import streamxf

STEPS, BATCH, TOKENS, ACTIONS = 10, 256, 1000, 8
torch.set_num_threads(1)


def new_policy() -> torch.nn.Module:
    layers = torch.nn.EmbeddingBag(TOKENS, 128), torch.nn.Linear(128, 512), torch.nn.ReLU()
    return torch.nn.Sequential(*layers, torch.nn.Linear(512, ACTIONS)).to(torch.bfloat16)


def weights(policy: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {name: each.detach() for name, each in policy.named_parameters()}


def digest(policy: torch.nn.Module) -> str:
    data = b"".join(each.view(torch.uint8).numpy().tobytes() for each in weights(policy).values())
    return hashlib.sha256(data).hexdigest()


def rollout(policy: torch.nn.Module) -> tuple[torch.Tensor, torch.Tensor]:
    """The logarithms of the probabilities of some actions, and what reward each got."""
    prompts = torch.randint(TOKENS, (BATCH, 4))
    choices = torch.distributions.Categorical(logits=policy(prompts).float())
    actions = choices.sample()
    return choices.log_prob(actions), (actions == prompts[:, 0] % ACTIONS).float()


def train(run: str) -> None:
    policy = new_policy()
    follower = streamxf.Follower(run, weights(policy))
    if update := follower.prepare():  # of a trainer that was killed
        update.apply()
    begun = follower.held.step if follower.held else 0
    masters = [each.detach().float().requires_grad_() for each in policy.parameters()]
    optimizer = torch.optim.AdamW(masters, lr=1e-5)
    publisher = streamxf.Publisher(run, chain="floatzip+checksum", full_every=16, keep=4)
    for step in range(begun + 1, STEPS + 1):
        chances, rewards = rollout(policy)
        policy.zero_grad()
        (-(rewards - rewards.mean()) * chances).mean().backward()
        for master, each in zip(masters, policy.parameters(), strict=True):
            master.grad = each.grad.float()
        optimizer.step()
        with torch.no_grad():
            for master, each in zip(masters, policy.parameters(), strict=True):
                each.copy_(master)
        version = publisher.publish(step, weights(policy).items())
        share = publisher.report.stored_bytes / publisher.report.raw_bytes
        print(f"trainer {version.step} {version.save_id} {digest(policy)} {share:.4f} of raw", flush=True)


def infer(run: str) -> None:
    policy = new_policy()
    follower = streamxf.Follower(run, weights(policy))
    while follower.held is None or follower.held.step < STEPS:
        if update := follower.prepare():  # downloads and checks, while serving would go on
            update.apply()  # changes the policy's memory
            reward = rollout(policy)[1].mean().item()
            print(f"inference {update.version.step} {update.version.save_id} {digest(policy)} {reward:.3f}", flush=True)
        time.sleep(0.05)


if __name__ == "__main__":
    run, *roles = sys.argv[1:]
    if roles:
        {"trainer": train, "inference": infer}[roles[0]](run)
    else:
        commands = [[sys.executable, __file__, run, role] for role in ("trainer", "inference", "inference")]
        sys.exit(max(each.wait() for each in [subprocess.Popen(command) for command in commands]))
