"""The tree core: records, builders, masks and the accept walk, pure torch and numpy."""
