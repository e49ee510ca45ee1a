"""Job 2: would re-tokenising these trajectories give other ids?"""
