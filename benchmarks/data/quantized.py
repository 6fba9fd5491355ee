"""Weights cast to eight and four bits with scales, as libraries for training and inference store them."""

from __future__ import annotations

import torch
from torch import Tensor

from benchmarks.dcp_sides import State

E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2
# between the values of e2m1: 0, 0.5, 1, 1.5, 2, 3, 4, 6
_BOUNDS = torch.tensor([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0])


def fp8(weights: State, dtype: torch.dtype, *, rows: bool) -> State:
    """Each matrix with a scale, or one for each row, that brings its greatest value to the dtype's."""
    state = {}
    for name, matrix in _matrices(weights, 1).items():
        most = matrix.abs().amax(1, keepdim=True) if rows else matrix.abs().amax()
        scale = most / torch.finfo(dtype).max
        state[name] = (matrix / scale).to(dtype)
        state[f"{name}_scale"] = scale
    return state


def mxfp4(weights: State) -> State:
    """e2m1, two to a byte, and a power of two for 32 neighbours, as the OCP's Microscaling Formats have it."""
    state = {}
    for name, matrix in _matrices(weights, 32).items():
        blocks = matrix.reshape(-1, 32)
        exponent = torch.floor(torch.log2(blocks.abs().amax(1, keepdim=True))) - 2
        state[name] = _e2m1(blocks / torch.exp2(exponent), matrix.shape)
        scales = (exponent + 127).to(torch.uint8).reshape(len(matrix), -1)
        state[f"{name}_scale"] = scales.view(torch.float8_e8m0fnu)
    return state


def nvfp4(weights: State) -> State:
    """e2m1, two to a byte, with a scale in e4m3 for 16 neighbours and one in fp32 for all."""
    state = {}
    for name, matrix in _matrices(weights, 16).items():
        blocks = matrix.reshape(-1, 16)
        whole = matrix.abs().amax() / (6 * 448)
        scales = (blocks.abs().amax(1, keepdim=True) / 6 / whole).clamp_min(2**-9).to(E4M3)
        state[name] = _e2m1(blocks / (scales.float() * whole), matrix.shape)
        state[f"{name}_scale"] = scales.reshape(len(matrix), -1)
        state[f"{name}_global_scale"] = whole
    return state


def _matrices(weights: State, block: int) -> State:
    """Those with rows of whole blocks; whatever else a model has is not quantized."""
    return {
        name: tensor.float()
        for name, tensor in weights.items()
        if tensor.dim() == 2 and len(tensor) > 2 and tensor.shape[1] % block == 0
    }


def _e2m1(scaled: Tensor, shape: torch.Size) -> Tensor:
    codes = torch.bucketize(scaled.abs(), _BOUNDS).to(torch.uint8) | (scaled < 0).to(torch.uint8) << 3
    pairs = codes[:, ::2] | codes[:, 1::2] << 4  # the first in the low bits
    return pairs.reshape(shape[0], -1).view(torch.float4_e2m1fn_x2)
