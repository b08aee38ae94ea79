"""Targets with recurrent layers (Gated DeltaNet): what they are refused for, and their verify of a tree."""
