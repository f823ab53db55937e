"""Another engine behind the same doors: an OpenAI-compatible server does the decoding.

The seam is `engine.Backend`, what an `EngineClient` talks to; so doors and jobs know nothing of it.
"""
