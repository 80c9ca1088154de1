"""Storage in buckets of Google Cloud Storage and containers of Azure, with obstore."""
