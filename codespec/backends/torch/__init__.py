"""The torch backend: models of every supported architecture, on a CPU or a GPU."""
