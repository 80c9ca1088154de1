"""What shows what a run was, is and came to: a page, which needs no torch, and the card of its model."""
