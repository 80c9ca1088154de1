"""A data source, a model family, a metric and a cloud for Rayscribe."""
