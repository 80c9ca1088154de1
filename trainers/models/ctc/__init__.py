"""The CTC family: encoders with an output for every frame."""
