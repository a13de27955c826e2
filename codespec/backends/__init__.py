"""Language models: the interface that the engine uses, and its implementations with native kernels or torch."""
