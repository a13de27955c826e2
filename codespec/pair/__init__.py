"""The report of `codespec check`: whether a target and a drafter work together, based on their files and sample text.

Does not load torch.
"""
