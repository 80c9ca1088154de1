"""Jobs of batch schedulers: real Slurm and Grid Engine daemons on hosts made of namespaces."""
