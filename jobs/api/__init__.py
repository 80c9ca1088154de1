"""The HTTP API: the operations of jobs.service under /v1, for programs and for the command line on other machines."""
