"""The HTML pages of the service: rendered here, updated by htmx, complete without a script."""
