"""Speech recognition models: families, processors, vocabularies and loading."""
