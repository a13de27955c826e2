"""The report of `codespec check`: whether a target and a drafter work together, by their files and some text.

Loads no torch.
"""
