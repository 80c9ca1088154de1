"""Checks that find an error before the cluster does.

    runner.py               run_preflight
    context.py              what is checked: recipe, repository, cluster
    local_checks.py         checks of the package and of paths; they make no requests
    cluster_checks.py       checks that call the cluster
    dashboard.py            what a cluster's dashboard responds, with and without a token
    inspection_process.py   checks of data and model, in a process of their own: `task.py --verb check`
    probe_job.py            the same on the cluster's nodes, as a small Ray job

Each check is a small function; its findings (`trainers.findings`) name the thing, the value and the fix.
"""
