"""A pass of a model: attention over trees, and what its logits say of one id each."""
