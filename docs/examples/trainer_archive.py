"""Hugging Face Trainer with an archive: torchrun --nproc-per-node 2 trainer_archive.py RUN.

The Trainer saves to RUN/scratch; what is kept is in RUN/archive. Killed and started again, it resumes from there.
"""

import sys

import torch
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainerCallback, TrainingArguments

import streamxf

STEPS, SAVE_EVERY = 12, 3


class Archive(TrainerCallback):
    def __init__(self, folder: str) -> None:
        self.folder = folder

    def on_save(self, args, state, control, **_):
        args.distributed_state.wait_for_everyone()  # each process writes files of its own
        if state.is_world_process_zero:
            name = f"checkpoint-{state.global_step}"
            streamxf.pack(f"{args.output_dir}/{name}", f"{self.folder}/{name}", "floatzip+checksum", overwrite=True)


class PrintLosses(TrainerCallback):
    def on_log(self, args, state, control, logs=None, **_):
        if state.is_world_process_zero and "loss" in logs:
            print(f"step {state.global_step} loss {logs['loss']:.9f}", flush=True)


def main(folder: str) -> None:
    scratch, archive = f"{folder}/scratch", f"{folder}/archive"
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=128, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2
    )
    rows = torch.randint(0, 128, (96, 16))
    arguments = TrainingArguments(
        scratch,
        max_steps=STEPS,
        save_steps=SAVE_EVERY,
        save_total_limit=1,
        per_device_train_batch_size=4,
        logging_steps=1,
        report_to="none",
        disable_tqdm=True,
        use_cpu=True,
    )
    trainer = Trainer(
        LlamaForCausalLM(config),
        arguments,
        train_dataset=[{"input_ids": row, "labels": row} for row in rows],
        callbacks=[Archive(archive), PrintLosses()],
    )
    resumed = f"{scratch}/resumed"
    with streamxf.CheckpointManager(archive, name="checkpoint-{}", verify="whole") as manager:
        last = manager.latest()
    with arguments.main_process_first():
        if last is not None and arguments.should_save:
            streamxf.unpack(last, resumed, overwrite=True)
            print(f"resumed from {last}", flush=True)
    trainer.train(resume_from_checkpoint=resumed if last else None)


if __name__ == "__main__":
    main(sys.argv[1])
