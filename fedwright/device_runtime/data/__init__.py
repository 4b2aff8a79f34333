"""Data sources of a device: npz, csv, image folders, python functions."""
