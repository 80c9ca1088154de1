"""Client and service side; never imports torch, transformers or datasets."""
