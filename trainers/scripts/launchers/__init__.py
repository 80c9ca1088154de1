"""Command lines of other launchers, such as torchrun: what each means for the program and its workers."""
