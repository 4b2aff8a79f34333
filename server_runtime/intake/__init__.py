"""Who may join and which updates are taken."""
