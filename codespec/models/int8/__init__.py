"""Eight-bit models for a CPU. Their products are sums of integers, which are exact, so rows can't affect each other."""
