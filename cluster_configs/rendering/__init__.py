"""ClusterSpec → the file of one target. Pure."""
