"""Sections of configs that stand in more than one of them, and how a config is read section by section."""
