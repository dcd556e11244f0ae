"""The paper: its experiments as grids of runs, the values it reports, and how they are reproduced."""
