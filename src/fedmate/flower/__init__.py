"""The back end `flower`: virtual clients and sites of their own. Only the registry of back ends names this package."""
