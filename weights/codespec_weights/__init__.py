"""The models that ship with codespec, and no code: the starter pair, the drafter for Qwen's models, an adapter."""
