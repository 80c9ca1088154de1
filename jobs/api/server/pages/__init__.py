"""The pages of the service, for people: rendered here, kept up to date by htmx, and complete without a script."""
