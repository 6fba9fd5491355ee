"""Flax and orbax: python orbax_manager.py RUN. Killed and started again, it resumes where it saved last."""

import os
import sys
import tempfile
from pathlib import Path

import jax
import jax.numpy as jnp
import optax
import orbax.checkpoint as ocp
from flax import linen
from flax.training.train_state import TrainState

from streamxf.errors import is_damage
from streamxf.integrations.orbax import chain_handlers

STEPS, SAVE_EVERY = 12, 3


@jax.jit
def update(state: TrainState, data: jax.Array) -> tuple[TrainState, jax.Array]:
    def loss_of(params: dict) -> jax.Array:
        return jnp.square(state.apply_fn(params, data) - data.sum(axis=1, keepdims=True)).mean()

    loss, gradients = jax.value_and_grad(loss_of)(state.params)
    return state.apply_gradients(grads=gradients), loss


def main(folder: Path) -> None:
    model = linen.Sequential([linen.Dense(256), linen.gelu, linen.Dense(1)])
    params = model.init(jax.random.key(0), jnp.zeros((1, 64)))
    state = TrainState.create(apply_fn=model.apply, params=params, tx=optax.adamw(1e-3))

    manager = ocp.CheckpointManager(folder.resolve(), handler_registry=chain_handlers("floatzip+checksum"))
    while begin := manager.latest_step() or 0:
        try:
            state = manager.restore(begin, args=ocp.args.StandardRestore(state))
            print(f"resumed from step {begin}", flush=True)
            break
        except Exception as error:
            if not is_damage(error):
                raise
            print(f"step {begin} is damaged: {error}", flush=True)
            os.rename(folder / str(begin), tempfile.mkdtemp(prefix=f"damaged-{begin}-", dir=folder))
            manager.reload()

    for step in range(begin + 1, STEPS + 1):
        state, loss = update(state, jax.random.normal(jax.random.key(1000 * step), (32, 64)))
        if step % SAVE_EVERY == 0:
            manager.save(step, args=ocp.args.StandardSave(state))
            manager.wait_until_finished()  # or it saves in the background while training goes on
        print(f"step {step} loss {loss:.9f}", flush=True)
    manager.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
