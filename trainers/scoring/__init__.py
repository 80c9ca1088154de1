"""From hypotheses to error rates."""
