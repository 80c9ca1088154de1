"""Clusters that this user has started, by name: starting, ending and reaching them."""
