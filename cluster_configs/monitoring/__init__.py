"""Prometheus and Grafana for trainings and for the service, see docs/monitoring.md."""
