"""Device profiles and fleets as data; README.md says which numbers are nominal."""
