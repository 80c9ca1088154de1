"""Tests of OpenAI's own Whisper weights, which `make real` writes; they skip without them."""
