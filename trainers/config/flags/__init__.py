"""The flags of the public fine-tuning scripts, in one table: what each means here, or why it is refused."""
