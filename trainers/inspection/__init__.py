"""Checks that find errors before training does: `task.py --verb check`, here or on the nodes of a cluster.

Only `model_checks` and `machine_checks` import torch, and only `node_checks` imports Ray, when their groups are run.
"""
