"""Families of models that are tried as plug-ins: pretrained weights of transformers' own classes."""
