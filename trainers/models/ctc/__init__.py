"""The CTC family: encoders with an output for each frame."""
