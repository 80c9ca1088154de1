"""One page that shows what a run was, is and came to. Imports no torch."""
