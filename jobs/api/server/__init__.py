"""The HTTP server: the FastAPI app, its middleware, and the process that serves it."""
