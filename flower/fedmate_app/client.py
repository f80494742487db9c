"""A client: a site with its own data, or a virtual one."""

from fedmate.flower.node import client_app, open_client
from fedmate_app import FOLDER

app = client_app(lambda context, token: open_client(context.run_config, context.node_config, token, FOLDER))
