"""The table of the flags of public fine-tuning scripts: what each means here, or why it is refused."""
