"""The FedMate paper: its experiments as studies, published figures, records of our runs, and tables."""
