"""A sweep without running its cells: answers and offers recorded once, every tree replayed, times from a cost model."""
