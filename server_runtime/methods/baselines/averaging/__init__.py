"""Baselines that average whole models, with steps of the server or parts of the devices of their own."""
