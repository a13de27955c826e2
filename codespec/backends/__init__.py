"""Language models: the interface for the engine, the native kernels (`native`), and torch (`torch`, `heads`)."""
