"""Prepares, trains and scores in processes of this machine, without Ray."""
