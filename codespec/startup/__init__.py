"""A daemon's start: load the models, measure the machine once, and keep the results for later starts."""
