"""What a run must not forget, in memory or in SQLite."""
