"""Job 1: log records into step records."""
