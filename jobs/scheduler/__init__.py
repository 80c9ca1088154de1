"""Who starts next: a pure function of the ledger's rows, what the clusters have, and what the queues allow.

limits.py limits_file.py   what the queues allow: queues.yaml
fit.py                     what can never fit, with the arithmetic
rows.py                    what the policy reads and what it says
pools.py lines.py          what may be held at once, and what is kept free for those that wait
policy.py                  the rules, in plain words, and the decision
"""
