"""Commands for programs and command lines that work already: launch, import-command."""
