"""Code that runs in the interpreter of a program: standard library only, for any Python since 3.8."""
