"""Checks that find a fault before training does: `task.py --verb check`, here or on the nodes of a cluster.

    notes.py        what a check says, and what a check is
    subject.py      the config under inspection, and what several checks look at
    recordings.py   durations and absences of a split's recordings, as many as there is time for
    storage.py data.py model.py hardware.py    the checks, in groups
    nodes.py        the same looks on every node of the cluster
    run.py          runs groups of checks and says their findings as JSON lines

Only `model.py` and `hardware.py` load torch, and `nodes.py` Ray; they are imported when their group is asked for.
"""
