"""The Whisper family."""
