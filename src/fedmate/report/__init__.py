"""Reports: they read records and never run anything."""
