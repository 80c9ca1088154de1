"""Encoder-decoder models beside Whisper."""
