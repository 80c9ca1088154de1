"""Lines that start training elsewhere, as torchrun's: what each says of the program and its workers."""
