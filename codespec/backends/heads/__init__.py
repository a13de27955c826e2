"""Draft heads: small networks that read a target's hidden states and predict its next tokens."""
