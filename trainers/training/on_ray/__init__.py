"""Workers on Ray and their reports to Ray; the training itself does not need them."""
