"""Scheduled jobs: the job file, the run that it describes, and what came of it."""
