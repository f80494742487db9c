"""Sites: clients that live on machines of their own, and what crosses between them and a server."""
