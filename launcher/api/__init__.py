"""The way in from Python, of which the command line is a view: recipes, plans and jobs as values."""
