"""What programs run on: a file per accelerator, a line each in `known_accelerators`."""
