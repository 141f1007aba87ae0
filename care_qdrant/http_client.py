"""The HTTP client for embedding services and judges: the only module that imports it, so that another can replace it.

Errors of qdrant-client are its own (`care_qdrant.qdrant.retry`), whichever HTTP client it uses.
"""

from httpx import Client, ConnectError, HTTPError, Limits, Response, TransportError

__all__ = ["Client", "ConnectError", "HTTPError", "Limits", "Response", "TransportError"]
