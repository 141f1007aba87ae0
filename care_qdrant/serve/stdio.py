"""One process for one assistant, which starts it and speaks the Model Context Protocol over its stdin and stdout."""

import asyncio
from contextlib import closing

from care_qdrant.serve.app import Service
from care_qdrant.serve.settings import ServeSettings


def serve_stdio(settings: ServeSettings) -> None:
    """Answer the assistant until it closes stdin. Logs go to stderr; stdout belongs to the protocol."""
    with closing(Service(settings, settings.load_models())) as service:
        asyncio.run(_serve(service))


async def _serve(service: Service) -> None:
    await service.load()
    assert service.mcp is not None  # set by `ServeSettings.mcp`
    await service.mcp.server.run_stdio_async()
