"""The model of a run in other formats: converted, scored again by the format's own runtime, and kept if equal."""
