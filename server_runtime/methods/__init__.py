"""Methods: four hooks each, found by name in the registry."""
