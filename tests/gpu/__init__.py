"""What needs a GPU, and runs without Ray, datasets, deepspeed and a network: see docs/gpu.md."""
