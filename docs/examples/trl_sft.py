"""TRL with FSDP2: torchrun --nproc-per-node 2 trl_sft.py RUN.

Killed and started again, it resumes where it saved last.
"""

import sys

import torch
from datasets import Dataset
from tokenizers import Tokenizer, models
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, TrainerCallback
from trl import SFTConfig, SFTTrainer

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
    words = {"<pad>": 0, "<eos>": 1, **{f"w{i}": i for i in range(2, 128)}}
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.WordLevel(words)), pad_token="<pad>", eos_token="<eos>"
    )
    config = LlamaConfig(
        vocab_size=128, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2
    )
    rows = torch.randint(2, 128, (96, 16))
    arguments = SFTConfig(
        folder,
        max_steps=STEPS,
        save_strategy="no",
        per_device_train_batch_size=4,
        bf16=False,
        fsdp=True,
        fsdp_config={"version": 2, "state_dict_type": "SHARDED_STATE_DICT"},
        logging_steps=1,
        report_to="none",
        disable_tqdm=True,
    )
    trainer = SFTTrainer(
        LlamaForCausalLM(config),
        arguments,
        train_dataset=Dataset.from_dict({"input_ids": rows.tolist()}),
        processing_class=tokenizer,
        callbacks=[PrintLosses()],
    )
    with streamxf.CheckpointManager(folder, name="checkpoint-{}", save=SAVE_EVERY, keep=2) as manager:
        trainer.add_callback(ManagerCallback(manager))
        last = manager.latest()
        if last is not None:
            print(f"resumed from {last}", flush=True)
        trainer.train(resume_from_checkpoint=last)


if __name__ == "__main__":
    main(sys.argv[1])
