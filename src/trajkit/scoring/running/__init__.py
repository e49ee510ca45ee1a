"""A run: processes and what they share, windows kept, work beside the model's."""
