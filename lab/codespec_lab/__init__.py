"""codespec's laboratory: benchmarks, training and distillation of drafters, and the demo. No editor needs it."""
