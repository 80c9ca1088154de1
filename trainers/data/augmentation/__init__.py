"""Random changes of the clips that are trained on."""
