"""The server's app."""

from collections.abc import Callable

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from asfedbridge.deploy.polling import quicken

PlayOver = Callable[[Grid, Context], None]


def make_server_app(play: PlayOver) -> ServerApp:
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        quicken()
        play(grid, context)

    return app
