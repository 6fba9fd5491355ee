"""Flax without orbax: python flax_msgpack.py RUN. Killed and started again, it resumes where it saved last."""

import sys

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


def main(folder: str) -> None:
    model = linen.Sequential([linen.Dense(256), linen.gelu, linen.Dense(1)])
    params = model.init(jax.random.key(0), jnp.zeros((1, 64)))
    state = TrainState.create(apply_fn=model.apply, params=params, tx=optax.adamw(1e-3))

    with streamxf.CheckpointManager(folder, save=SAVE_EVERY, keep=2) as manager:
        last = manager.latest()
        if last is not None:
            with streamxf.open(f"{last}/state.msgpack.sxf") as file:
                state = serialization.from_bytes(state, file.read())
            print(f"resumed from step {state.step}", flush=True)

        for step in range(int(state.step) + 1, STEPS + 1):
            state, loss = update(state, jax.random.normal(jax.random.key(1000 * step), (32, 64)))
            print(f"step {step} loss {loss:.9f}", flush=True)
            if manager.should_save(step, last=step == STEPS):
                path = f"{manager.begin(step)}/state.msgpack.sxf"
                with streamxf.open(path, "wb", chain="floatzip+checksum") as file:
                    file.write(serialization.to_bytes(state))
                manager.commit(step)
            if manager.stopping:
                break


if __name__ == "__main__":
    main(sys.argv[1])
