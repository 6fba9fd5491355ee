"""Hugging Face Trainer with FSDP2: torchrun --nproc-per-node 2 trainer_fsdp2.py RUN.

Killed and started again, it resumes where it saved last.
"""

import sys

import torch
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainerCallback, TrainingArguments

import streamxf
from streamxf.integrations.transformers import ManagerCallback

streamxf.install(chain="floatzip+checksum")

STEPS, SAVE_EVERY = 12, 3


class PrintLosses(TrainerCallback):
    def on_log(self, args, state, control, logs=None, **_):
        if state.is_world_process_zero and "loss" in logs:
            print(f"step {state.global_step} loss {logs['loss']:.9f}", flush=True)


def main(folder: str) -> None:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=128, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2
    )
    rows = torch.randint(0, 128, (96, 16))
    arguments = TrainingArguments(
        folder,
        max_steps=STEPS,
        save_strategy="no",
        per_device_train_batch_size=4,
        fsdp=True,
        fsdp_config={"version": 2, "state_dict_type": "SHARDED_STATE_DICT"},
        logging_steps=1,
        report_to="none",
        disable_tqdm=True,
    )
    trainer = Trainer(
        LlamaForCausalLM(config),
        arguments,
        train_dataset=[{"input_ids": row, "labels": row} for row in rows],
        callbacks=[PrintLosses()],
    )
    keep = streamxf.Retention(last=2, best=1, metric="loss")
    with streamxf.CheckpointManager(folder, name="checkpoint-{}", save=SAVE_EVERY, keep=keep) as manager:
        trainer.add_callback(ManagerCallback(manager))
        last = manager.latest()
        if last is not None:
            print(f"resumed from {last}", flush=True)
        trainer.train(resume_from_checkpoint=last)


if __name__ == "__main__":
    main(sys.argv[1])
