"""Who starts next: a pure function of the ledger's rows, what the clusters have, and what the queues allow.

limits.py             what the queues allow
feasibility.py        what can never fit, with the arithmetic
decision.py           what the policy reads and returns
pools.py lines.py     what may be held at once, and what is reserved for those that wait
policy.py             the rules, in plain words, and the decision
"""
