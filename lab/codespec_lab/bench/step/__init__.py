"""`codespec bench step`: the cost of a step relative to the memory bandwidth, and of exact relative to fast mode."""
