"""Ray clusters: jobs, capacity and logs; the only package that calls Ray's Jobs API."""
