"""What runs in the interpreter of a program: the standard library alone, of any Python since 3.8."""
