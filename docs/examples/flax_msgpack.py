"""Flax without orbax: python flax_msgpack.py RUN. Killed and started again, it resumes where it saved last."""

import os
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import optax
from flax import linen, serialization
from flax.training.train_state import TrainState

import streamxf

STEPS, SAVE_EVERY = 12, 3


@jax.jit
def update(state: TrainState, data: jax.Array) -> tuple[TrainState, jax.Array]:
    def loss_of(params: dict) -> jax.Array:
        return jnp.square(state.apply_fn(params, data) - data.sum(axis=1, keepdims=True)).mean()

    loss, gradients = jax.value_and_grad(loss_of)(state.params)
    return state.apply_gradients(grads=gradients), loss


def main(folder: Path) -> None:
    os.makedirs(folder, exist_ok=True)
    path = folder / "state.msgpack.sxf"
    model = linen.Sequential([linen.Dense(256), linen.gelu, linen.Dense(1)])
    params = model.init(jax.random.key(0), jnp.zeros((1, 64)))
    state = TrainState.create(apply_fn=model.apply, params=params, tx=optax.adamw(1e-3))

    if path.exists():
        with streamxf.open(path) as file:
            state = serialization.from_bytes(state, file.read())
        print(f"resumed from step {state.step}", flush=True)

    for step in range(int(state.step) + 1, STEPS + 1):
        state, loss = update(state, jax.random.normal(jax.random.key(1000 * step), (32, 64)))
        if step % SAVE_EVERY == 0:
            with streamxf.open(path, "wb", chain="floatzip+checksum") as file:
                file.write(serialization.to_bytes(state))
        print(f"step {step} loss {loss:.9f}", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
