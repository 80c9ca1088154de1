"""What a worker is and tells on Ray; the training itself needs none of it."""
