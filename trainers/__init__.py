"""What runs on the cluster: preparing speech, training, scoring, exporting. Imports nothing of `jobs`."""
