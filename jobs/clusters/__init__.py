"""Ray clusters, as the service uses them; the only package that talks to Ray's Jobs API."""
