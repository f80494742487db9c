"""A client: a site with its own data, or a virtual one."""

from fedmate.flower.client_app import client_app
from fedmate.flower.node import open_site
from fedmate_app import FOLDER

app = client_app(lambda context, token: open_site(context.run_config, context.node_config, token, FOLDER))
