"""The rules, one file per family. Each takes a read file and what is installed, and yields violations."""
