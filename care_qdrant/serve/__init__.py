"""The pair as a service: requests of Qdrant, of OpenAI clients and of people in; vectors and hits out.

A worker process is `app` (routes) over `pairs` (the encoders, each behind a bounded line) and `searching` (the
configured collections); `supervisor` starts, replaces and stops these processes. Nothing here knows how a model is
trained or a collection is written.
"""
