"""What suites are made of: jobs, tables, plots, reports."""
