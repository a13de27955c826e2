"""From the name of a model to a folder that can be loaded: which models are chosen, where they lie, what their files
say. No torch.
"""
