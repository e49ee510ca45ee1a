"""What a model must read to score some steps, each prefix once. Knows no model, needs no torch."""
