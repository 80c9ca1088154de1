"""Clusters that this user has started, by name: starting, ending and connecting to them."""
