"""Looking for the settings of a method on validation samples, with the same budget for every method."""
