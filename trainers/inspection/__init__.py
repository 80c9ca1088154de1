"""Checks that find an error before training does: `task.py --verb check`, here or on the nodes of a cluster.

    ../findings.py      what a check is and what it finds; families of models and `jobs.preflight` use it too
    subject.py          the config under inspection, and its manifests, opened once
    recordings.py       durations of a split's recordings, and which are missing
    opened_model.py     the config's model, as far as it opens without its weights
    storage_checks.py data_checks.py model_checks.py hardware_checks.py    the checks, in groups
    node_checks.py      the same checks on every node of the cluster
    check_command.py    runs groups of checks and prints their findings as JSON lines

Only `model_checks` and `hardware_checks` import torch, and `node_checks` Ray; each when its group is run.
"""
