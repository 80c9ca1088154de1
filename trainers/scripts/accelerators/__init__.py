"""What programs run on: a line per accelerator in `known_accelerators`."""
