"""The rules, one file a family. Each takes a read file and what is installed, and yields what breaks it."""
