"""What it takes to put a federation on machines of its own, and to see how it does; nothing here runs a round."""
