"""The operations on runs, and the controller, which executes them."""
