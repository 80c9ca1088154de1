"""The flags of the public fine-tuning scripts, in one table: the meaning of each, or why it is refused."""
