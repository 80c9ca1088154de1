"""Ray clusters as the service sees them: the only package that talks to Ray's Jobs API."""
