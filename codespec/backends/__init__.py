"""The models: what the engine asks of one, in native kernels (`native`) and in torch (`torch`, `heads`)."""
