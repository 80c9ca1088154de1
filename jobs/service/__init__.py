"""The operations on runs, and the controller that carries them out."""
