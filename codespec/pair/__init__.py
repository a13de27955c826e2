"""The report of `codespec check`: whether a target and a drafter work together. Loads no torch."""
