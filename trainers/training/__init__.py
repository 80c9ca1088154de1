"""What each training worker runs."""
