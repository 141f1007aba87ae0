"""Models as a service: requests of Qdrant, of OpenAI clients and of people in; vectors and hits out.

A worker process is `app` (routes) over `models` (the encoders, each behind a bounded queue) and `searching` (the
configured collections), with `metrics` and `tracing` beside them; `stdio` is one for a single assistant. `supervisor`
starts, replaces and stops these processes. Nothing here knows how a model is trained or a collection is written.
"""
