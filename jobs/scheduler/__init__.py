"""Which runs start next: a pure function of the ledger's rows, the clusters' capacity and the queues' limits.

limits.py             what the queues allow
feasibility.py        what can never fit, with the amounts
decision.py           what the policy reads and returns
pools.py              what may be held at once, and what is reserved for those that wait
run_demands.py        what a run demands of each of its pools
policy.py             the rules, and the decision
"""
