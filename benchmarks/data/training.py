"""A training state: parameters, exp_avg and exp_avg_sq of a byte-level transformer trained with AdamW.

The text is Python's own: the standard library's sources and licence, which every machine with Python has. Seed, data
order and number of steps are fixed, so that the state depends on nothing but the versions of Python and torch.
"""

from __future__ import annotations

import hashlib
import platform
import sysconfig
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.dcp_sides import State
from benchmarks.harness import progress

MAX_TEXT_BYTES = 8 * 2**20
MOMENTS = ("exp_avg", "exp_avg_sq")


@dataclass(frozen=True)
class Training:
    """Sizes of the model, whose feed-forward part is four times as wide, and of its training."""

    width: int = 256
    layers: int = 8
    heads: int = 8
    context: int = 128
    batch: int = 4
    steps: int = 500


SMOKE = Training(width=32, layers=1, heads=2, context=32, batch=2, steps=3)


class _Model(nn.Module):
    def __init__(self, training: Training) -> None:
        super().__init__()
        self.embed = nn.Embedding(256, training.width)
        self.place = nn.Embedding(training.context, training.width)
        layer = nn.TransformerEncoderLayer(
            training.width, training.heads, 4 * training.width, 0.0, "gelu", batch_first=True, norm_first=True
        )
        self.body = nn.TransformerEncoder(layer, training.layers, enable_nested_tensor=False)
        for parameter in self.body.parameters():  # the layers are copies of one; each begins elsewhere
            if parameter.dim() > 1:
                nn.init.xavier_uniform_(parameter)
        self.norm = nn.LayerNorm(training.width)

    def forward(self, tokens: Tensor) -> Tensor:
        length = tokens.shape[1]
        mask = nn.Transformer.generate_square_subsequent_mask(length)
        hidden = self.embed(tokens) * 16 + self.place(torch.arange(length))
        return self.norm(self.body(hidden, mask=mask, is_causal=True)) @ self.embed.weight.T / 16


def training_state(cache: Path, training: Training) -> dict[str, State]:
    """``parameters``, ``exp_avg`` and ``exp_avg_sq``: fp32 tensors by name, trained now or taken from the `cache`."""
    versions = f"{asdict(training)} {platform.python_version()} {torch.__version__}"
    key = hashlib.sha256(versions.encode() + Path(__file__).read_bytes()).hexdigest()[:16]
    file = cache / f"training-{key}.pt"
    if not file.exists():
        state = _train(training)
        cache.mkdir(parents=True, exist_ok=True)
        torch.save(state, file.with_suffix(".part"))
        file.with_suffix(".part").rename(file)
    return torch.load(file, weights_only=True)


def text() -> Tensor:
    """The bytes to train on, of shape (bytes,), uint8."""
    folder = Path(sysconfig.get_path("stdlib"))
    data = b"".join(path.read_bytes() for path in sorted([*folder.glob("*.py"), *folder.glob("LICENSE*")]))
    return torch.frombuffer(bytearray(data[:MAX_TEXT_BYTES]), dtype=torch.uint8)


def _train(training: Training) -> dict[str, State]:
    torch.manual_seed(1)
    generator = torch.Generator().manual_seed(2)
    model = _Model(training)
    optimizer = torch.optim.AdamW(model.parameters(), lr=6e-4, betas=(0.9, 0.95), weight_decay=0.1)
    count = sum(parameter.numel() for parameter in model.parameters())
    progress(f"training {count / 1e6:.1f} million parameters for {training.steps} steps")
    data = text()
    window = torch.arange(training.context + 1)
    for step in range(training.steps):
        starts = torch.randint(len(data) - len(window), (training.batch, 1), generator=generator)
        tokens = data[starts + window].long()
        logits = model(tokens[:, :-1])
        loss = functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step % 50 == 0 or step == training.steps - 1:
            progress(f"training: step {step}, loss {loss.item() / 0.693147:.2f} bits per byte")
    parameters = dict(model.named_parameters())
    moments = {
        moment: {name: optimizer.state[parameter][moment] for name, parameter in parameters.items()}
        for moment in MOMENTS
    }
    return {"parameters": {name: parameter.detach() for name, parameter in parameters.items()}, **moments}
