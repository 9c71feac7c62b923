"""Which release this is; here, so that any package can ask without importing the API."""

__version__ = "0.2.0.dev0"
