from importlib.util import find_spec

NEED_FLOWER = (
    *("backend", "check", "deployment", "keys", "local_app"),
    *("messages", "node", "server", "simulation", "transport"),
)
collect_ignore = [] if find_spec("flwr") else [f"test_{name}.py" for name in NEED_FLOWER]
