"""The rl room: losses, advantages and what they are made of. numpy in float64, no framework."""
