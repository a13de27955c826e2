"""The benchmarks' commands, one a module: its flags, and the bench that they become."""
