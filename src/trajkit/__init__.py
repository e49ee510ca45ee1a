"""trajkit: convert and audit the trajectories of LLM agents."""

__version__ = "0.1.0"
