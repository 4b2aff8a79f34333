"""What people and their tools see of a run, from what it writes down while it goes on."""
