"""One run: specification, recipes, fleet, the run itself and its folder."""
