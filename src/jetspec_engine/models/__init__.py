"""Target families, weight loading, tokenizers and the model store."""
