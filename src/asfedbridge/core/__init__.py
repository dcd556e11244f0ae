"""Words, formulas and rules: torch and numpy only, no files."""
