"""Run int8 models on a CPU. Their products are sums of integers, which are exact, so rows can't affect each other."""
