"""`--debug`: two batches through every stage, with a tiny model in place of a large one."""
