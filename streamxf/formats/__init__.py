"""Checkpoints of other formats, with the same face as `streamxf.Checkpoint`: safetensors, Hugging Face, torch.save."""
