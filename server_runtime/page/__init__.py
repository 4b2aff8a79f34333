"""The page of a fleet: what a browser shows of runs, and what people order there."""
