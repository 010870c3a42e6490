"""Measurements: `python -m bench` for search, the other modules for the chunkers."""
