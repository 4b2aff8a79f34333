"""The folder of a run: whose it is, taking rounds back, looking for damage."""
