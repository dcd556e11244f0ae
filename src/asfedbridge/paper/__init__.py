"""The paper's experiments as grids of runs, its reported values, and their reproduction."""
