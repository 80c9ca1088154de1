"""The operations on runs, and the controller, which advances runs."""
