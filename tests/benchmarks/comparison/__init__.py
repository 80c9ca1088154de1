"""Rayscribe next to the stock recipe: sides that take turns, and the rows of their figures."""
