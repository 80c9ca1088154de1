"""Commands for existing programs and command lines: launch, import-command."""
