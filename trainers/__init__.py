"""Code that runs on the cluster: preparation, training, scoring, export. Imports nothing of `jobs`."""
