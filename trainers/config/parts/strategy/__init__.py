"""The distribution of weights, gradients and optimizer state over the workers, and the DeepSpeed config."""
