"""The server."""

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fedmate.flower.server import serve
from fedmate_app import FOLDER

app = ServerApp()


@app.main()  # type: ignore[untyped-decorator]
def main(grid: Grid, context: Context) -> None:
    """Run the experiment that the run config names."""
    serve(grid, context.run_config, FOLDER)
