"""The ground under everything that reads hostile logs, shows them, or publishes a file."""
