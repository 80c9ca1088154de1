"""Strategies: how model, gradients and optimizer state are spread over the ranks (DDP, DeepSpeed's ZeRO, FSDP2)."""
