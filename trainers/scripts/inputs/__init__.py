"""What a script reads: placeholders in its arguments, inputs fetched from storage, data prepared once."""
