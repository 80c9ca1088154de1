"""Reads command lines of other launchers, such as torchrun, as settings of the program and its workers."""
