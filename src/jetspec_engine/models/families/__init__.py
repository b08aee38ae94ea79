"""Target families by ``model_type``: one small file each, listed in ``table``."""
