"""One file a dialect: a body becomes a CompletionRequest, a completion becomes the reply that its clients read."""
