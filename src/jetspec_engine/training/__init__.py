"""Draft-head distillation on text the target wrote itself."""
