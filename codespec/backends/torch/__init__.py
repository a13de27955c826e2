"""A backend that torch computes: folders of any supported architecture, on a CPU or a GPU."""
