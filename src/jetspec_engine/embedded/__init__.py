"""The bundled PyTorch engine."""
