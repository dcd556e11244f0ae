"""Specifications, recipes and the run folder."""
