"""One file a step, each for ever as it was released."""
