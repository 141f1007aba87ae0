"""Models as a service: requests of Qdrant, of OpenAI clients and of people in; vectors and hits out.

A worker process is `app` (routes) over `models` (the encoders, each behind a queue of `admission`), `catalogue` (which
collections are served) and `searching`, which ask Qdrant through `backend`; `metrics` counts.
`supervisor` starts, replaces and stops these processes. Nothing here knows how a model is trained or a collection is
written.
"""
