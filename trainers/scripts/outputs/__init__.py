"""What a program writes: its checkpoints and files are kept while it runs, and given back when it starts again."""
