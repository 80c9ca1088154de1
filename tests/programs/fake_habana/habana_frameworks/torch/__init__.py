"""The plug-in of torch, which adds no device here."""
