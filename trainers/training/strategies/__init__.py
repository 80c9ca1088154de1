"""Strategies: how model, gradients and optimizer are shared out over the ranks (DDP, DeepSpeed's ZeRO, FSDP2)."""
