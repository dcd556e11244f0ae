"""The data sets a run can name, one file for each."""
