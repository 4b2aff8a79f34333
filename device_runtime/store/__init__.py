"""What a device keeps on disk: its journal, checkpoints, secrets, and tensors that tasks leave behind."""
