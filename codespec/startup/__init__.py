"""Load the models and prepare an engine. Measurements of the machine are saved for later starts."""
