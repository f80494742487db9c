from importlib.util import find_spec

NEED_FLOWER = ("backend", "deploy", "deployment", "messages", "server", "simulation")
collect_ignore = [] if find_spec("flwr") else [f"test_{name}.py" for name in (*NEED_FLOWER, "transport")]
