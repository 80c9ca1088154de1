"""Strategies: how model, gradients and optimizer state are sharded over the ranks (DDP, DeepSpeed's ZeRO, FSDP2)."""
