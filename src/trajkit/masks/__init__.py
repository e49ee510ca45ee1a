"""Job: which tokens train, and is that right? Rules over masks, and one mask against another."""
