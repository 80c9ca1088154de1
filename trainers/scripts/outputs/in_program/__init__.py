"""Code that runs in the interpreter of a program, and therefore uses only the standard library of Python 3.8."""
