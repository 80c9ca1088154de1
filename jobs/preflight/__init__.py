"""Checks that find a fault before the cluster does.

    finding.py      Finding, and what a check is
    case.py         what is looked at: recipe, repository, cluster
    here.py         checks of what goes along, that ask nobody
    cluster.py      checks that ask the cluster
    dashboard.py    what the dashboard answers to a plain question
    inspection.py   checks of data and model, in a process of their own: `task.py --verb check`
    probe.py        the same on the nodes, as a small Ray job
    run.py          run_preflight

Each check is a small function; its finding names the thing, the value and the fix.
"""
