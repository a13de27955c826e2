"""Eight-bit models for a CPU: products of integers, which are exact, so that rows cannot influence each other."""
