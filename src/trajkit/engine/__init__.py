"""Two jobs put together: what one found is what the other is asked about."""
