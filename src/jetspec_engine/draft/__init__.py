"""Draft heads, their checkpoints, and drafters: the real one and scripted stand-ins."""
