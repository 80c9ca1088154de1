"""How weights, gradients and optimizer are spread over the workers, and what DeepSpeed is told."""
