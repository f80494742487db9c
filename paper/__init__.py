"""The FedMate paper: its experiments as studies, published figures, records of our runs, and the tables made of them."""
