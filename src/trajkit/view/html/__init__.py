"""A view as one HTML file: nothing is fetched, nothing of the data is markup or script."""
