"""Encoder-decoder models other than Whisper."""
