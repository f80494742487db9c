"""Building blocks that several methods share: pure functions of tensors."""
