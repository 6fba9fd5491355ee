"""State dicts in the shapes of two Granite models, with fewer layers and with weights drawn like trained ones.

Real weights cannot be shipped. What decides their size in a compressor is the distribution of their exponents, and this
is drawn as it is found in trained transformers: matrices are normal with a standard deviation of their own, times a
factor for each row and one for each column, both log-normal. That mixture of scales gives the heavier tails (an excess
kurtosis of about 1 to 2); the gains of norms are near 1.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from benchmarks.dcp_sides import State

ROW_SPREAD, COLUMN_SPREAD = 0.25, 0.25  # standard deviations of the factors' logarithms
GAIN_SPREAD = 0.1


@dataclass(frozen=True)
class Granite:
    """The numbers of a model's published configuration that give the shapes of its tensors.

    Attributes
    ----------
    layers : int
        Of the model itself.
    kept : int
        How many of them are made here.
    biased : bool
        Whether its linear layers have biases.
    """

    name: str
    hidden: int
    intermediate: int
    vocabulary: int
    heads: int
    key_heads: int
    layers: int
    kept: int
    biased: bool

    def shrunk(self, factor: int) -> Granite:
        """The same proportions at a `factor`-th of the width, and one layer."""
        return Granite(
            self.name,
            self.hidden // factor,
            self.intermediate // factor,
            self.vocabulary // factor,
            self.heads,
            self.key_heads,
            self.layers,
            1,
            self.biased,
        )


# Both share the weights of the embedding with the output, so that there is one large matrix besides the layers.
CODE_3B = Granite("granite-3b-code-instruct", 2560, 10240, 49152, 32, 32, 32, kept=4, biased=True)
CHAT_8B = Granite("granite-3.2-8b-instruct", 4096, 12800, 49155, 32, 8, 40, kept=2, biased=False)


def granite_state(model: Granite) -> State:
    """Make a state dict in bf16."""
    generator = torch.Generator().manual_seed(1)
    narrow = model.hidden * model.key_heads // model.heads
    matrices = {
        "self_attn.q_proj": (model.hidden, model.hidden),
        "self_attn.k_proj": (narrow, model.hidden),
        "self_attn.v_proj": (narrow, model.hidden),
        "self_attn.o_proj": (model.hidden, model.hidden),
        "mlp.gate_proj": (model.intermediate, model.hidden),
        "mlp.up_proj": (model.intermediate, model.hidden),
        "mlp.down_proj": (model.hidden, model.intermediate),
    }
    state = {"model.embed_tokens.weight": _matrix(model.vocabulary, model.hidden, generator)}
    for layer in range(model.kept):
        prefix = f"model.layers.{layer}"
        for name, (rows, columns) in matrices.items():
            state[f"{prefix}.{name}.weight"] = _matrix(rows, columns, generator)
            if model.biased:
                state[f"{prefix}.{name}.bias"] = torch.randn(rows, generator=generator).mul_(0.05).bfloat16()
        for name in ("input_layernorm", "post_attention_layernorm"):
            state[f"{prefix}.{name}.weight"] = _gains(model.hidden, generator)
    state["model.norm.weight"] = _gains(model.hidden, generator)
    return state


def _matrix(rows: int, columns: int, generator: torch.Generator) -> torch.Tensor:
    scale = 0.02 * torch.randn(1, generator=generator).mul_(0.3).exp_()
    matrix = torch.randn(rows, columns, generator=generator)
    matrix *= scale * torch.randn(rows, 1, generator=generator).mul_(ROW_SPREAD).exp_()
    matrix *= torch.randn(columns, generator=generator).mul_(COLUMN_SPREAD).exp_()
    return matrix.bfloat16()


def _gains(size: int, generator: torch.Generator) -> torch.Tensor:
    return torch.randn(size, generator=generator).mul_(GAIN_SPREAD).add_(1).bfloat16()
