"""Small networks that read a target's hidden states and guess its next tokens."""
