"""What a checkpoint is made of, and which checkpoints agree."""
