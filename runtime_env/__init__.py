"""What a job's environment is made of; pure."""
