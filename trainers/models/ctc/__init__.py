"""The CTC family, which are encoders with an output for each frame."""
