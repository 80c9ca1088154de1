"""Whether one recognizer is better than another on the same utterances. Imports no torch."""
