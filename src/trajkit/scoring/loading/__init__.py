"""From a folder to a model in memory: what may be loaded, and how it is divided."""
