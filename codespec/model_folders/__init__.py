"""From a model's name to a loadable folder: choice of models, their location and their files. Needs no torch."""
