"""Commands that compare and show the results of runs."""
